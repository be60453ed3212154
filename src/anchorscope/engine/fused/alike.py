"""Whether two computations agree to rounding, on random input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Own code rounds between its steps, ours once: a few units in the last place, not more.
_UNITS = 4


@torch.no_grad()
def alike(own: Callable[..., Any], ours: Callable[..., Any], *inputs: Tensor) -> bool:
    """Whether both give the same to rounding; False where either cannot take the input."""
    try:
        one, other = _tensors(own(*inputs)), _tensors(ours(*inputs))
    except Exception:  # Triton has errors of its own, and each means that ours is not for this
        return False
    return len(one) == len(other) and all(map(_close, one, other))


def noise(like: Tensor, *shape: int) -> Tensor:
    """Random input of a tensor's kind and place, the same every time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, dtype=torch.float32, generator=generator).to(like)


def _tensors(out: Any) -> tuple[Tensor, ...]:
    return (out,) if isinstance(out, Tensor) else tuple(out)


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    unit = torch.finfo(one.dtype).eps * _UNITS
    largest = float(one.float().abs().max())
    return torch.allclose(one.float(), other.float(), rtol=unit, atol=unit * largest)
