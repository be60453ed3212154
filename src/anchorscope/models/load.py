"""Load a model: a hub id, a folder, a .gguf file, `bundled`, or one that is already loaded."""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, get_args

import torch
import xxhash
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
)

from anchorscope.config import Engine
from anchorscope.engine_vllm import VllmServer, find_vllm
from anchorscope.errors import UserError, did_you_mean, in_a_line, unknown, user_path
from anchorscope.models.gguf import convert_once
from anchorscope.models.locate import WEIGHTS, config_source, find_model
from anchorscope.models.parts import Parts, find_parts, longest_row

log = logging.getLogger(__name__)
DType = Literal["auto", "float32", "bfloat16", "float16"]
Memory = dict[int | str, int | str] | None  # bytes that a device may hold; None: what is free
BALANCED = "balanced"  # over all devices, and main memory and disk where they do not suffice


@dataclass(frozen=True)
class Model:
    """A causal language model with its tokenizer and its parts: decoder, blocks, head."""

    name: str  # as figures write it
    source: str  # as the user gave it
    revision: str | None
    lm: PreTrainedModel
    tokenizer: Any
    parts: Parts
    why: str  # the reason for device and dtype
    adapter: str | None = None  # as the user gave it; its change is in the weights
    server: VllmServer | None = None  # holds the weights; `lm` then has their shapes alone

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.blocks} blocks, {self.dtype} on {self.device})"

    @property
    def blocks(self) -> int:
        return len(self.parts.blocks)

    @property
    def device(self) -> torch.device:
        return first_device(self.lm) if self.server is None else self.server.device

    @property
    def dtype(self) -> torch.dtype:
        return self.lm.dtype


def load_model(
    model: str | Path | nn.Module | Model,
    *,
    tokenizer: Any = None,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    adapter: str | Path | None = None,
    engine: Engine = "transformers",
    tensor_parallel: int = 1,
) -> Model:
    """Load a model by name, on the device and in the dtype that suit this machine.

    Args:
        model: `bundled` or another name of `anchorscope models`, a hub id, a folder, a .gguf file,
            or a transformers model that you have loaded.
        tokenizer: The tokenizer of a model that you have loaded.
        device: auto, balanced (over all devices), cpu, cuda, cuda:N, or mps.
        dtype: auto, float32, bfloat16, or float16.
        revision: The revision of a hub model.
        trust_remote_code: Run code that comes with a hub model.
        adapter: A PEFT adapter's folder or hub id; it is merged into the weights.
        engine: transformers, or vllm: the weights are then in vLLM's processes.
        tensor_parallel: The number of GPUs that share the model under vLLM.

    Returns:
        The model with its tokenizer and its parts.

    Examples:
        >>> import anchorscope as anc
        >>> model = anc.load_model("bundled")
        >>> model.name, model.blocks
        ('SmolLM2-135M-Instruct', 30)
        >>> same = anc.load_model(model.lm, tokenizer=model.tokenizer)  # one that you have loaded
        >>> same.lm is model.lm
        True

    """
    if engine == "vllm":
        _check_served(model, device, adapter)
    if not isinstance(model, str | Path):
        return _wrap(model, tokenizer, adapter)
    if trust_remote_code:
        log.warning(
            "Code that comes with %s will be run on this machine, with your rights "
            "(trust_remote_code). Read it first.", model,
        )  # fmt: skip
    choice, given = choose(device, dtype), str(model)
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    with _without_library_bars():
        place = find_model(given)
        name = place.split("/")[-1] if isinstance(place, str) else place.resolve().name
        if isinstance(place, Path) and place.suffix == ".gguf":
            name = WEIGHTS[given].title if given in WEIGHTS else place.stem
            place = convert_once(place)
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(place), **options)
            server = None
            if engine == "vllm":
                lm = _outline(str(place), choice.dtype, options)
                server = VllmServer(
                    str(place),
                    dtype=choice.dtype,
                    tensor_parallel=tensor_parallel,
                    longest=longest_row(lm),
                    **options,
                )
            else:
                lm = _read_weights(str(place), choice, options, adapter)
        except (MemoryError, UserError):
            raise
        except torch.OutOfMemoryError as error:
            raise _too_large(choice.device) from error
        except Exception as error:  # an invalid folder or reply may raise any error
            raise unreadable(given, error, trusted=trust_remote_code) from error
    if adapter is not None:
        path = user_path(adapter)
        last = path.resolve().name if path.is_dir() else str(adapter).rstrip("/").split("/")[-1]
        name = f"{name} + {last}"
    why = choice.why + (f"; on {devices_of(lm)}" if choice.spread else "")
    why += "; by vLLM" if server is not None else ""
    log.info("%s on %s", name, why)
    return Model(
        name=name,
        source=given,
        revision=getattr(lm.config, "_commit_hash", None) or revision,
        lm=lm.eval(),
        tokenizer=_with_offsets(tokenizer, name),
        parts=find_parts(lm),
        why=why,
        adapter=None if adapter is None else str(adapter),
        server=server,
    )


def _check_served(model: Any, device: str, adapter: str | Path | None) -> None:
    """Raise a UserError where vLLM cannot load what was asked for; nothing is loaded yet."""
    for given, name, accepted in (
        (None if isinstance(model, str | Path) else "a loaded model", "model", "a name or a place"),
        (None if device in ("auto", "cuda") else device, "device", "auto, cuda"),
        (adapter, "adapter", "none: merge it into the weights and save the model"),
    ):
        if given is not None:
            raise UserError(
                f"{name} is {given}, and --engine vllm loads the weights itself, on its own GPUs. "
                f"Accepted: {accepted}; or --engine transformers."
            )
    find_vllm()


def _outline(place: str, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    """The model's modules without weights, for their names and shapes; a hash of its files."""
    config = AutoConfig.from_pretrained(place, **options)
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(
            config, dtype=dtype, trust_remote_code=options["trust_remote_code"]
        )
    with suppress(OSError):
        lm.generation_config = GenerationConfig.from_pretrained(place, revision=options["revision"])
    digest = xxhash.xxh3_128(f"{place}@{getattr(config, '_commit_hash', None)}".encode())
    if Path(place).is_dir():
        digest = xxhash.xxh3_128()
        for file in sorted(Path(place).glob("*.safetensors")):
            with file.open("rb") as opened:
                while part := opened.read(1 << 24):
                    digest.update(part)
    lm.served_weights = digest.hexdigest()
    return lm


def _wrap(model: Any, tokenizer: Any, adapter: str | Path | None) -> Model:
    """Wrap a model that the caller has loaded; its weights, device and dtype stay as they are."""
    if isinstance(model, Model) and (adapter is None or str(adapter) == model.adapter):
        return model
    if adapter is not None or isinstance(model, Model):
        raise UserError(
            f"The adapter '{adapter}' was given beside a loaded model, which stays as it is. "
            "Give the model's name and the adapter: load_model(name, adapter=adapter)."
        )
    lm = getattr(model, "_orig_mod", model)  # of torch.compile
    if hasattr(lm, "get_base_model"):
        # An adapter inside the weights is in the base model; one that adds tokens is not.
        if getattr(getattr(lm, "active_peft_config", None), "is_prompt_learning", False):
            raise UserError(
                f"{type(lm).__name__} puts learned tokens in front of every text, which has no "
                "place in a prompt here. Accepted: adapters inside the weights, such as LoRA."
            )
        lm = lm.get_base_model()
    if not isinstance(lm, PreTrainedModel):
        raise UserError(
            f"A {type(lm).__name__} is not a causal language model of transformers. Give one, "
            "with its tokenizer: load_model(model, tokenizer=tokenizer)."
        )
    check_plain(lm)
    name = str(lm.config.name_or_path or type(lm).__name__)
    if tokenizer is None:
        raise UserError(
            f"A loaded model ({name}) came without its tokenizer. Give both: "
            "load_model(model, tokenizer=tokenizer)."
        )
    return Model(
        name=Path(name).name,
        source=name,
        revision=getattr(lm.config, "_commit_hash", None),
        lm=lm,
        tokenizer=_with_offsets(tokenizer, name),
        parts=find_parts(lm),
        why=f"{devices_of(lm)} and {lm.dtype} as loaded by the caller",
    )


def _read_weights(
    place: str, choice: Choice, options: dict[str, Any], adapter: str | Path | None
) -> Any:
    """Load the weights onto the device, with the adapter merged into them."""
    if choice.spread and adapter is None:
        return read_spread(place, dtype=choice.dtype, **options)
    # Straight onto the device, without a copy in main memory; an adapter is merged first.
    device = choice.device if adapter is None else None
    lm: Any = AutoModelForCausalLM.from_pretrained(
        place, dtype=choice.dtype, device_map=device, **options
    )
    check_plain(lm)
    if adapter is not None:
        lm = _merge_adapter(lm, str(adapter))
        lm = spread_out(lm) if choice.spread else lm.to(choice.device)
    return lm


def _too_large(device: str) -> UserError:
    size = ""
    if torch.device(device).type == "cuda":
        size = f" ({torch.cuda.get_device_properties(device).total_memory / 2**30:.1f} GiB in all)"
    return UserError(
        f"The model does not fit into what is free of {device}{size}. "
        "Choose another device, a smaller dtype or a smaller model."
    )


@contextmanager
def _without_library_bars() -> Iterator[None]:
    """Hide the progress bars of transformers and the hub inside the block."""
    from transformers.utils import logging  # slow to import

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def unreadable(given: str, error: Exception, *, trusted: bool) -> UserError:
    """Make the error for a model that cannot be loaded; name the option for a model's own code."""
    advice = (
        "Accepted: a hub id (org/name) that can be reached from here, a folder, a .gguf file, "
        "or `bundled`."
    )
    if not trusted and "trust_remote_code" in str(error):  # transformers has no type for it
        advice = (
            "Read that code first. To run it, give --trust-remote-code (trust_remote_code=True in "
            "Python); commands without that option never do."
        )
    meant = did_you_mean(given, WEIGHTS)
    return UserError(f"The model '{given}' could not be loaded: {in_a_line(error)} {advice}{meant}")


def read_shape(
    model: str, *, revision: str | None = None, trusted: bool = False
) -> tuple[int, int]:
    """Number of blocks and width of a model, from its config on disk or on the hub."""
    try:
        place, options = config_source(model)
        # Explicit: transformers otherwise asks at the terminal whether to run the model's code.
        config = AutoConfig.from_pretrained(
            place, revision=revision, trust_remote_code=trusted, **options
        ).get_text_config()
        return int(config.num_hidden_layers), int(config.hidden_size)
    except UserError:
        raise
    except Exception as error:  # a config that makes no sense ends in any error
        raise unreadable(model, error, trusted=trusted) from error


def _with_offsets(tokenizer: Any, name: str) -> Any:
    """Return the tokenizer; a UserError where it gives no character offsets."""
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"The tokenizer of {name} ({type(tokenizer).__name__}) gives no character offsets. "
            "A fast tokenizer (one with a tokenizer.json) is needed."
        )
    return tokenizer


def _merge_adapter(lm: PreTrainedModel, adapter: str) -> PreTrainedModel:
    """Add a PEFT adapter's change to the weights of its base model, in place."""
    try:
        from peft import PeftModel
    except ImportError:
        raise UserError(
            f"The adapter '{adapter}' needs peft: pip install 'anchorscope[adapters]'."
        ) from None
    path = user_path(adapter)
    place = str(path) if path.is_dir() else adapter
    try:
        with warnings.catch_warnings():
            # Weights that the file lacks would keep their initial values, without effect.
            warnings.filterwarnings("error", message=".*missing adapter keys")
            merged: Any = PeftModel.from_pretrained(lm, place)
        if merged.active_peft_config.is_prompt_learning:
            kind = merged.active_peft_config.peft_type
            raise ValueError(f"{kind.value} adds tokens and changes no weights.")
        return merged.merge_and_unload()
    except (OSError, ValueError, KeyError, RuntimeError, UserWarning) as error:
        base = Path(str(lm.config.name_or_path or type(lm).__name__)).name
        reason = " ".join(str(error).split())[:240].rstrip(".: ")
        raise UserError(
            f"The adapter '{adapter}' could not be merged into {base}: {reason}. "
            "Accepted: a folder or a hub id (org/name) with an adapter_config.json, made by peft "
            "for this very model, of a kind that changes weights (LoRA and its relatives)."
        ) from error


# --- Models that cannot be used ---


def check_plain(lm: nn.Module) -> None:
    """Raise a UserError where a model is compiled or rounds its activations by batch."""
    name = type(lm).__name__
    for module in lm.modules():
        own, weight = module.__dict__.get("forward"), module._parameters.get("weight")
        if (
            type(module).__name__ == "OptimizedModule"
            or getattr(module, "_compiled_call_impl", None) is not None
            or hasattr(own, "_torchdynamo_orig_callable")
        ):
            raise UserError(
                f"Parts of this {name} are compiled, and their attention cannot be replaced. Give "
                "the model before `torch.compile`."
            )
        # Dynamic quantisation, by torch in a module of its own, by torchao in its weight.
        of_torch = "ao.nn.quantized" in type(module).__module__
        if of_torch or getattr(weight, "act_quant_kwargs", None) is not None:
            raise UserError(
                f"This {name} rounds its activations to a few bits as well as its weights, by "
                "steps that depend on what else is in the batch, so no state would come out "
                "twice. Give the model itself, or one with quantised weights alone."
            )


# --- The device and the dtype ---


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
