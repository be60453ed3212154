"""Faster matrix products on a CPU: packed bfloat16 weights with AMX, BLAS on ARM without bfloat16.

torch gives products to oneDNN. With AMX it multiplies 1.2 to 1.4 times as fast where the weights
are in an order of its own: those of the blocks are copied into it once. On ARM cores without
bfloat16 (Neoverse-N1) the BLAS that torch has as well is faster in float32, so oneDNN is switched
off. Both choices follow from the processor and the dtype alone: two runs on like machines must
multiply alike, to the last bit.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from anchorscope.engine.limits import all_memory
from anchorscope.models import Model
from anchorscope.models.device import cpu_has_amx, cpu_has_bfloat16

_SHARE = 16  # of the machine's memory, the most that the copy may take


class _Packed(NamedTuple):
    weight: Tensor
    sum: int  # of the weight's bits when it was packed


# A model is leased many times.
_KNOWN: WeakKeyDictionary[nn.Module, _Packed] = WeakKeyDictionary()


@contextmanager
def cpu_fast_paths(model: Model) -> Iterator[None]:
    """Use the faster matrix products of this processor until the `with` block ends."""
    with weights_packed(model), without_onednn(model.dtype):
        yield


@contextmanager
def without_onednn(dtype: torch.dtype) -> Iterator[None]:
    """Switch oneDNN off, where products of this dtype are faster without it, until it ends."""
    arm = platform.machine().lower() in ("aarch64", "arm64") and sys.platform == "linux"
    before = bool(torch.backends.mkldnn.enabled)
    off = arm and dtype == torch.float32 and not cpu_has_bfloat16()
    _switch_onednn(on=before and not off)
    try:
        yield
    finally:
        _switch_onednn(on=before)


def _switch_onednn(*, on: bool) -> None:
    # Not `flags()`, which sets TF32 as well, with a warning.
    torch.backends.mkldnn.enabled = on  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def weights_packed(model: Model) -> Iterator[None]:
    """Pack the weights of a model's blocks, where that is faster, until the block ends."""
    layers = _layers(model) if packing_is_faster(model.dtype) else []
    if sum(layer.weight.nbytes for layer in layers) * _SHARE > all_memory():
        layers = []
    try:
        for layer in layers:
            layer.forward = _forward(layer, _packed(layer))
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def packing_is_faster(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies numbers of a dtype faster with packed weights."""
    return dtype == torch.bfloat16 and _suits_processor()


@cache
def _suits_processor() -> bool:
    """Whether there is AMX, and torch has these functions, which it may drop."""
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
    return [m for block in model.parts.blocks for m in block.modules() if _is_plain(m)]


def _is_plain(layer: Any) -> bool:
    """Whether a module is a plain linear layer of torch on a CPU."""
    if type(layer) is not nn.Linear or "forward" in layer.__dict__:
        return False
    # A quantised weight is of another type.
    return type(layer.weight) is nn.Parameter and layer.weight.device.type == "cpu"


@torch.no_grad()
def _packed(layer: nn.Linear) -> Tensor:
    """The packed weight, made again where the weight has changed since."""
    known, total = _KNOWN.get(layer), _sum(layer.weight)
    if known is None or known.sum != total:
        known = _KNOWN[layer] = _Packed(packed_weight(layer.weight.detach()), total)
    return known.weight


def _sum(weight: Tensor) -> int:
    """A checksum of a weight: the sum of its bits, taken as whole numbers."""
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
