"""Which device and number format this machine is best at, and why."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch

from anchorscope.errors import UserError, unknown

DType = Literal["auto", "float32", "bfloat16", "float16"]


BALANCED = "balanced"  # over all devices, and main memory and disk where they do not suffice


class Choice(NamedTuple):
    """A device and a dtype with the reason for them, in words."""

    device: str
    dtype: torch.dtype
    why: str
    spread: str | None = None  # "balanced"; `device` is then the first


def choose(device: str = "auto", dtype: str = "auto") -> Choice:
    """The device and dtype to run on; `auto` asks the machine."""
    if dtype not in get_args(DType):
        raise unknown("dtype", dtype, get_args(DType))
    chosen, because = _device(device)
    spread = BALANCED if device == BALANCED else None
    if dtype != "auto":
        said = f"{because}; {dtype} as asked"
        return Choice(chosen, getattr(torch, dtype), said, spread)
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
    other = _cpu_has("avx512_bf16", "_is_avx512_bf16_supported") or _cpu_has("bf16")
    return cpu_has_amx() or other


def cpu_has_amx() -> bool:
    """Whether the processor multiplies whole tiles of bfloat16 at a time."""
    return _cpu_has("amx_bf16", "_is_amx_tile_supported")


def _cpu_has(capability: str, before: str = "") -> bool:
    """Whether torch says so; `before` is what to ask where it has no public list, up to 2.11."""
    known = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(known.get(capability)) or getattr(torch.cpu, before, bool)()


def _device(asked: str) -> tuple[str, str]:
    if asked == BALANCED:
        return _device("auto")[0], "spread over the devices as asked"
    if asked == "auto":
        if torch.cuda.is_available():
            return "cuda", "a GPU is there"
        if torch.backends.mps.is_available():
            return "mps", "an Apple GPU is there"
        return "cpu", "no GPU is there"
    try:
        torch.empty(1, device=asked)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"Device '{asked}' cannot be used: {str(error).splitlines()[0]} "
            "Accepted: auto, balanced (one model over all devices, by accelerate's device_map), "
            "cpu, cuda, cuda:N, mps, as far as this machine has them; --workers N has each GPU run "
            "a copy of the model."
        ) from error
    return asked, f"{asked} as asked"
