"""Linear layers whose weights lie as the processor multiplies them.

torch gives products in bfloat16 to oneDNN, which lays the whole weight out anew in every call: as
much work as multiplying it with a few hundred tokens. Here that is done once, for a second copy of
the weights of the blocks (benchmarks/packed.py).
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
from anchorscope.models import Model

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
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    capable = getattr(torch.cpu, "get_capabilities", dict)().get("amx_bf16")
    # Before torch 2.12 there is no public list of the processor's capabilities.
    if not (capable or getattr(torch.cpu, "_is_amx_tile_supported", bool)()):
        return False
    return _tried(torch.bfloat16)


@torch.no_grad()
def _tried(dtype: torch.dtype) -> bool:
    """Whether a packed weight gives the products of a plain one, to rounding."""
    generator = torch.Generator().manual_seed(0)
    tokens, weight, bias = (
        torch.randn(*shape, generator=generator).to(dtype) for shape in ((3, 64), (32, 64), (32,))
    )
    try:
        ours = _product(tokens, _reordered(weight), bias)
    except Exception:  # another version of torch, or one without oneDNN
        return False
    return torch.allclose(ours, linear(tokens, weight, bias), rtol=2e-2, atol=2e-2)


def _reordered(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)


def _product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def _layers(model: Model) -> list[Any]:
    """The linear layers of the blocks that can be packed."""
    return [m for block in model.parts.blocks for m in block.modules() if _suits(m)]


def _suits(layer: Any) -> bool:
    """Whether it is a plain linear layer on a CPU that nobody has changed."""
    if type(layer) is not nn.Linear or "forward" in layer.__dict__:
        return False
    # A weight that several processes share, or that is quantised, is of another type.
    weight = layer.weight
    return type(weight) is nn.Parameter and weight.device.type == "cpu" and weight.is_contiguous()


@torch.no_grad()
def _packed(layer: nn.Linear) -> Tensor:
    """The packed weight, made anew where somebody has changed the weight since."""
    known, total = _KNOWN.get(layer), _sum(layer.weight)
    if known is None or known.sum != total:
        known = _KNOWN[layer] = _Packed(_reordered(layer.weight.detach()), total)
    return known.weight


def _sum(weight: Tensor) -> int:
    """The sum of a weight's bits, taken as whole numbers: another one where any has changed."""
    words = weight.detach().view(torch.int16)
    whole = words.shape[-1] % 4 == 0
    return int((words.view(torch.int64) if whole else words).sum())


def _forward(layer: nn.Linear, packed: Tensor) -> Callable[[Tensor], Tensor]:
    """The layer's forward with its packed weight; with gradients its own."""

    def forward(x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or x.dtype != packed.dtype:
            return linear(x, layer.weight, layer.bias)
        return _product(x, packed, layer.bias)

    return forward
