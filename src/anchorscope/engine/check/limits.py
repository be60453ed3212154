"""How far two states lie apart, and how far rounding alone may move them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anchorscope.engine.check.stock import Stock, stock_pass
from anchorscope.models import Model

_TOLERANCE = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
# Deep models with large activations round further in half precision: as far as transformers' own
# two ways of attention differ on this very model, and a little more.
_SLACK = 4.0


def distance(a: Tensor, b: Tensor) -> float:
    """The largest distance of two states [..., width], as a mean share of their values' size.

    A mean over the width, each value against itself and the layer's usual size: the few values of
    a residual stream that are a thousand times larger than the rest would hide all else.
    """
    a, b = a.float(), b.float()
    size = b.abs() + b.abs().mean(dim=-1, keepdim=True).clamp(min=1e-9)
    apart = ((a - b).abs() / size).mean(dim=-1)
    # A NaN, on either side, is as far as anything can be.
    return float(apart.nan_to_num(torch.inf, posinf=torch.inf).max())


def rounding(model: Model, rows: Sequence[Sequence[int]], eager: Stock) -> float:
    """How far states may lie apart and still be the same but for rounding."""
    usual = _TOLERANCE.get(model.dtype, _TOLERANCE[torch.bfloat16])
    if model.dtype == torch.float32 or not model.lm._supports_sdpa:
        return usual
    other = stock_pass(model, rows, attention="sdpa")
    # A mean over tokens: the largest is that of one odd token, and would hide a real difference.
    size = eager.states.float().abs()
    size = size + size.mean(dim=-1, keepdim=True).clamp(min=1e-9)
    apart = (other.states.float() - eager.states.float()).abs() / size
    return max(usual, _SLACK * float(apart.mean(dim=(0, 1, 3)).max()))
