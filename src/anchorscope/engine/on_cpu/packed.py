"""Linear layers whose weights lie as the processor multiplies them.

torch gives products in bfloat16 to oneDNN, which multiplies sooner with weights in an order of its
own. Here the weights of the blocks are copied into that order once (benchmarks/packed.py).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from anchorscope.engine.limits.bounds import all_memory
from anchorscope.engine.on_cpu.gates import is_plain
from anchorscope.models import Model
from anchorscope.models.device import cpu_has_amx

_SHARE = 16  # of the machine's memory, the most that the copy may take


class _Packed(NamedTuple):
    weight: Tensor
    sum: int  # of the weight's bits when it was packed


# A model is lent many times.
_KNOWN: WeakKeyDictionary[nn.Module, _Packed] = WeakKeyDictionary()


@contextmanager
def weights_packed(model: Model) -> Iterator[None]:
    """A model whose blocks multiply with packed weights, where that is faster, until it ends."""
    layers = _layers(model) if wins_packed(model.dtype) else []
    if sum(layer.weight.nbytes for layer in layers) * _SHARE > all_memory():
        layers = []
    try:
        for layer in layers:
            layer.forward = _forward(layer, _packed(layer))
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def wins_packed(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies numbers of a dtype sooner so.

    The choice follows from the processor and the dtype alone, as that of `products.py` does.
    """
    return dtype == torch.bfloat16 and _suits_processor()


@cache
def _suits_processor() -> bool:
    """Whether it has AMX, and torch these functions, which it does not promise to keep."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return x86 and cpu_has_amx() and _tried(torch.bfloat16)


@torch.no_grad()
def _tried(dtype: torch.dtype) -> bool:
    """Whether a packed weight gives the products of a plain one, to rounding."""
    generator = torch.Generator().manual_seed(0)
    tokens, weight, bias = (
        torch.randn(*shape, generator=generator).to(dtype) for shape in ((3, 64), (32, 64), (32,))
    )
    try:
        ours = packed_product(tokens, packed_weight(weight), bias)
    except Exception:  # another version of torch, or one without oneDNN
        return False
    return torch.allclose(ours, linear(tokens, weight, bias), rtol=2e-2, atol=2e-2)


def packed_weight(weight: Tensor) -> Tensor:
    """The weight [out, in] in oneDNN's order, which only `packed_product` can read."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)


def packed_product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """What a linear layer with that weight gives for x [..., in]."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def _layers(model: Model) -> list[Any]:
    """The linear layers of the blocks that can be packed."""
    return [m for block in model.parts.blocks for m in block.modules() if is_plain(m)]


@torch.no_grad()
def _packed(layer: nn.Linear) -> Tensor:
    """The packed weight, made anew where somebody has changed the weight since."""
    known, total = _KNOWN.get(layer), _sum(layer.weight)
    if known is None or known.sum != total:
        known = _KNOWN[layer] = _Packed(packed_weight(layer.weight.detach()), total)
    return known.weight


def _sum(weight: Tensor) -> int:
    """The sum of a weight's bits, taken as whole numbers: another one where any has changed."""
    words = weight.detach().contiguous().view(torch.int16)
    whole = words.shape[-1] % 4 == 0
    return int((words.view(torch.int64) if whole else words).sum())


def _forward(layer: nn.Linear, packed: Tensor) -> Callable[[Tensor], Tensor]:
    """The layer's forward with its packed weight; with gradients its own."""

    def forward(x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or x.dtype != packed.dtype:
            return linear(x, layer.weight, layer.bias)
        return packed_product(x, packed, layer.bias)

    return forward
