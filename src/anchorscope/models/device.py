"""Choose a device and a dtype, and spread a model over several devices."""

from __future__ import annotations

import weakref
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, get_args

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from anchorscope.errors import UserError, unknown

DType = Literal["auto", "float32", "bfloat16", "float16"]
Memory = dict[int | str, int | str] | None  # bytes that a device may hold; None: what is free
BALANCED = "balanced"  # over all devices, and main memory and disk where they do not suffice


class Choice(NamedTuple):
    """A device and a dtype with the reason for them, in words."""

    device: str
    dtype: torch.dtype
    why: str
    spread: bool = False  # over all devices; `device` is then the first


def choose(device: str = "auto", dtype: str = "auto") -> Choice:
    """Choose the device and dtype to run on; `auto` goes by the hardware."""
    if dtype not in get_args(DType):
        raise unknown("dtype", dtype, get_args(DType))
    chosen, because = _device(device)
    spread = device == BALANCED
    if dtype != "auto":
        return Choice(chosen, getattr(torch, dtype), f"{because}; {dtype} as asked", spread)
    if chosen.startswith("cuda"):
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        reason = "the GPU has bfloat16 units" if fast else "the GPU has no bfloat16 units"
    elif chosen == "cpu":
        fast = cpu_has_bfloat16()
        reason = f"the processor has {'' if fast else 'no '}bfloat16 instructions"
    else:
        fast, reason = False, f"safe on {chosen}"
    name = "bfloat16" if fast else "float32"
    return Choice(chosen, getattr(torch, name), f"{because}; {name}: {reason}", spread)


def cpu_has_bfloat16() -> bool:
    """Whether bfloat16 products run in hardware; without it they are hundreds of times slower."""
    # torch lists the capabilities; up to 2.11 it has private tests instead of the last two.
    listed = getattr(torch.cpu, "get_capabilities", dict)()
    tests = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(listed.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16")) or any(
        getattr(torch.cpu, test, bool)() for test in tests
    )


def _device(name: str) -> tuple[str, str]:
    """Resolve the name of a device; return it with the reason in words."""
    if name == BALANCED:
        return _device("auto")[0], "spread over the devices as asked"
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda", "a GPU is there"
        if torch.backends.mps.is_available():
            return "mps", "an Apple GPU is there"
        return "cpu", "no GPU is there"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"Device '{name}' cannot be used: {str(error).splitlines()[0]} "
            "Accepted: auto, balanced (one model over all devices, by accelerate's device_map), "
            "cpu, cuda, cuda:N, mps, as far as this machine has them; --workers N has each GPU run "
            "a copy of the model."
        ) from error
    return name, f"{name} as asked"


# --- One model over several devices, by accelerate ---


def read_spread(place: str, *, memory: Memory = None, **options: Any) -> PreTrainedModel:
    """Load a model directly onto all devices; weights that do not fit stay on disk."""
    folder = TemporaryDirectory(prefix="anchorscope-")
    lm = AutoModelForCausalLM.from_pretrained(
        place, device_map="auto", max_memory=memory, offload_folder=folder.name, **options
    )
    weakref.finalize(lm, folder.cleanup)
    return lm


def spread_out(lm: Any, *, memory: Memory = None) -> Any:
    """Dispatch a model from main memory over all devices, in place."""
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    whole: dict[str, Any] = {"no_split_module_classes": list(lm._no_split_modules or ())}
    free: Any = memory or get_balanced_memory(lm, **whole)
    folder = TemporaryDirectory(prefix="anchorscope-")
    places = infer_auto_device_map(lm, max_memory=free, **whole)
    dispatch_model(lm, places, offload_dir=folder.name)
    weakref.finalize(lm, folder.cleanup)
    return lm


def first_device(lm: Any) -> torch.device:
    """The device on which a model's embedding takes the tokens; its weights may be offloaded."""
    embedding = lm.get_input_embeddings()
    hook = getattr(embedding, "_hf_hook", None)
    hooks: Any = getattr(hook, "hooks", (hook,))
    for hook in hooks:
        if getattr(hook, "execution_device", None) is not None:
            return torch.device(hook.execution_device)
    return next(embedding.parameters()).device


def devices_of(lm: Any) -> str:
    """The devices that hold the model's weights, in words: "cuda:0, cuda:1, disk"."""
    places = getattr(lm, "hf_device_map", {}).values()
    names = dict.fromkeys(f"cuda:{p}" if isinstance(p, int) else str(p) for p in places)
    return ", ".join(names) or str(first_device(lm))
