"""Gated MLPs in two buffers that stay, on a CPU; those of the last block for few tokens alone.

A gated MLP makes four arrays of [token, intermediate width] in every block: gate, up, the
activation and their product. The system clears each page of fresh memory before it can be written
to. Here the first two are written over and over, and the other two into the first. Of what the last
block makes a pass reads the tokens whose states it keeps: no other token sees the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

# The packed tokens that anybody reads after the block that runs now; None: all of them.
Wanted = Callable[[], Tensor | None]
_PARTS = ("gate_proj", "up_proj", "down_proj", "act_fn")
# What `_activation` said of a module: a model is lent many times.
_KNOWN: WeakKeyDictionary[nn.Module, bool | None] = WeakKeyDictionary()


class Gate(NamedTuple):
    """An MLP that can be written into buffers, and how it is activated."""

    module: Any
    in_place: bool  # whether its activation is SiLU, which can write over its input


@contextmanager
def gates_in_place(lm: nn.Module, wanted: Wanted = lambda: None) -> Iterator[None]:
    """A model whose gated MLPs use the same two buffers, until the block ends."""
    gates, buffers = list(_gates(lm)), Buffers()
    try:
        for gate in gates:
            gate.module.forward = _forward(gate, buffers, wanted)
        yield
    finally:
        for gate in gates:
            gate.module.__dict__.pop("forward", None)


class Buffers:
    """Two arrays [token, width], as large as the largest that was asked for."""

    def __init__(self) -> None:
        self._flat: list[Tensor] = []

    def two(self, tokens: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Both, of so many tokens, of a tensor's dtype; what they held before is lost."""
        size = tokens * width
        kind = bool(self._flat) and self._flat[0].dtype == like.dtype
        if not kind or self._flat[0].numel() < size:
            self._flat.clear()  # let go of the old ones first
            self._flat += [torch.empty(size, dtype=like.dtype) for _ in range(2)]
        one, other = (flat[:size].view(tokens, width) for flat in self._flat)
        return one, other


def _gates(lm: nn.Module) -> Iterator[Gate]:
    """The MLPs of a model that buffers serve; each is tried once."""
    for module in filter(_is_gated, lm.modules()):
        if module not in _KNOWN:
            _KNOWN[module] = _activation(module)
        in_place = _KNOWN[module]
        if in_place is not None:
            yield Gate(module, in_place)


def _is_gated(module: Any) -> bool:
    """Whether gate, up and down are plain products on a CPU that nobody has changed or watches."""
    if "forward" in module.__dict__ or not all(hasattr(module, name) for name in _PARTS):
        return False
    products = (module.gate_proj, module.up_proj, module.down_proj)
    return all(map(_can_be_written, products)) and module.gate_proj.weight.dtype.is_floating_point


def _can_be_written(product: Any) -> bool:
    """Whether a product is its weight alone, and nobody asks to see it."""
    if not is_plain(product) or product.bias is not None:
        return False
    return not (product._forward_hooks or product._forward_pre_hooks)


def is_plain(layer: Any) -> bool:
    """Whether it is a linear layer on a CPU as torch makes it."""
    if type(layer) is not nn.Linear or "forward" in layer.__dict__:
        return False
    # A weight that several processes share, or that is quantised, is of another type.
    return type(layer.weight) is nn.Parameter and layer.weight.device.type == "cpu"


@torch.no_grad()
def _activation(module: Any) -> bool | None:
    """Whether an MLP is activated in place; None where buffers give other bits than its own."""
    generator = torch.Generator().manual_seed(0)
    sample = torch.randn(1, 3, module.gate_proj.in_features, generator=generator)
    sample = sample.to(module.gate_proj.weight)
    try:
        own = module(sample)
        for in_place in (True, False):
            ours = _forward(Gate(module, in_place), Buffers(), lambda: None)
            if torch.equal(ours(sample), own):
                return in_place
    except Exception:  # it takes or gives something else, and runs as it is
        return None
    return None


def _forward(gate: Gate, buffers: Buffers, wanted: Wanted) -> Callable[..., Tensor]:
    """The MLP's forward by way of the buffers; with gradients its own."""
    module, own = gate.module, gate.module.forward

    def through(rows: Tensor) -> Tensor:
        gated, up = _products(module, rows, buffers)
        gated = silu(gated, inplace=True) if gate.in_place else module.act_fn(gated)
        return module.down_proj(gated.mul_(up))

    def forward(x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or x.device.type != "cpu":
            return own(x)
        rows = x.reshape(-1, x.shape[-1])
        # Of a pack alone: an expert gets rows of its own, in places of their own.
        only = wanted() if x.dim() == 3 else None
        if only is None or len(only) >= len(rows):
            return through(rows).view(*x.shape[:-1], -1)
        few = through(rows.index_select(0, only))
        out = few.new_zeros(len(rows), few.shape[-1]).index_copy_(0, only, few)
        return out.view(*x.shape[:-1], -1)

    return forward


def _products(module: Any, rows: Tensor, buffers: Buffers) -> tuple[Tensor, Tensor]:
    """Gate and up [token, width], in the buffers; what packed weights give lies where it was made.

    A packed product cannot be told where to write (`packed.py`).
    """
    gate, up = module.gate_proj, module.up_proj
    if "forward" in gate.__dict__:
        return gate(rows), up(rows)
    out = buffers.two(len(rows), gate.out_features, gate.weight)
    return torch.mm(rows, gate.weight.t(), out=out[0]), torch.mm(rows, up.weight.t(), out=out[1])
