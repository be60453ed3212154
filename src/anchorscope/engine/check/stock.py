"""States by stock attention: whole rows, transformers' own code, edits at the softmax alone.

Independent of the engine on purpose. No packing, no memory, no mask of ours: each row runs whole
through eager attention, and what an intervention changes is changed where the scores become
weights, whatever way the model made them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from anchorscope.engine.attention import attention_named
from anchorscope.engine.interventions import Intervention, TokenPositions, window_of
from anchorscope.engine.layout import UnsupportedModel
from anchorscope.models import Model

_SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)
_LOG_SUM = (torch.logsumexp, Tensor.logsumexp)  # how some models let a sink take its share


@dataclass(frozen=True)
class Edit:
    """A change to a block's attention; both parts are [row, 1 or head, query, key]."""

    added: Tensor | None = None  # to the scores
    factor: Tensor | None = None  # of the weights


Edits = Callable[[int], Edit | None]  # of a block, from 1
Keep = Callable[[Tensor], None]  # is given the states [row, token, width] behind every block


class Stock(NamedTuple):
    """Whole rows by stock attention, padded on the right."""

    states: Tensor  # [row, token, layer, width]
    logits: Tensor  # [row, token, vocabulary]
    hidden: tuple[Tensor, ...]  # output_hidden_states


@torch.no_grad()
def stock_pass(model: Model, rows: Sequence[Sequence[int]], *, attention: str = "eager") -> Stock:
    """States and logits at every token; nothing looks ahead, so padding is on the right."""
    tokens, states = _padded(model, rows), []
    scores = _Scores(lambda block: None, tokens.shape[1], edited=attention == "eager")
    with _prepared(model, scores, states.append, attention):
        out = model.lm(tokens, use_cache=False, output_hidden_states=True)
    if attention == "eager":
        scores.check(model.blocks)
    return Stock(torch.stack(states, dim=2), out.logits, out.hidden_states)


@torch.no_grad()
def stock_states(
    model: Model, rows: Sequence[Sequence[int]], edits: Edits, *, depth: int
) -> Tensor:
    """The states [row, layer, width] of `depth` layers at each row's last token.

    What comes later is not computed.
    """
    tokens, states = _padded(model, rows), []
    scores = _Scores(edits, tokens.shape[1], edited=True)
    last = torch.arange(len(rows)), torch.tensor([len(row) - 1 for row in rows])

    def keep(hidden: Tensor) -> None:
        states.append(hidden[last])

    with _prepared(model, scores, keep, "eager", depth=depth), suppress(_Enough):
        model.lm(tokens, use_cache=False)
    scores.check(depth)
    return torch.stack(states, dim=1)


def _padded(model: Model, rows: Sequence[Sequence[int]]) -> Tensor:
    length = max(len(row) for row in rows)
    padded = [[*row, *[row[-1]] * (length - len(row))] for row in rows]
    return torch.tensor(padded, device=model.device)


class _Enough(Exception):
    """Ends a pass whose last wanted block is done."""


@contextmanager
def _prepared(
    model: Model, scores: _Scores, keep: Keep, attention: str, depth: int | None = None
) -> Iterator[None]:
    """The model with stock attention, its scores edited, and the states of every block kept."""
    with ExitStack() as stack:
        stack.enter_context(attention_named(model.lm, attention))
        for number, block in enumerate(model.parts.blocks[:depth], start=1):
            hooked = _hooked(block, number, scores, keep, ends=number == depth)
            stack.enter_context(hooked)
        stack.enter_context(scores)
        yield


@contextmanager
def _hooked(
    block: nn.Module, number: int, scores: _Scores, keep: Keep, *, ends: bool
) -> Iterator[None]:
    """Tell the scores which block runs, and keep the states after it."""

    def begin(module: nn.Module, args: tuple) -> None:
        scores.block = number

    def end(module: nn.Module, args: tuple, output: Any) -> None:
        keep(output[0] if isinstance(output, tuple | list) else output)
        if ends:
            raise _Enough

    hooks = [block.register_forward_pre_hook(begin), block.register_forward_hook(end)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Scores(TorchFunctionMode):
    """Edit the scores and the weights of every softmax over the keys."""

    def __init__(self, edits: Edits, length: int, *, edited: bool) -> None:
        super().__init__()
        self.edits, self.length, self.edited = edits, length, edited
        self.block = 0
        self.seen: list[int] = []

    def check(self, blocks: int) -> None:
        """Every block must have shown one softmax over its keys, else the comparison is empty."""
        if self.seen != list(range(1, blocks + 1)):
            raise UnsupportedModel(
                "its eager attention does not show one softmax over the keys in every block, so "
                "there is nothing to compare with"
            )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        known = func in _SOFTMAX or func in _LOG_SUM
        if not self.edited or not known or not self._over_keys(args):
            return func(*args, **kwargs)
        edit = self.edits(self.block) or Edit()
        scores = args[0]
        # A sink, where there is one, is the last column.
        extra = scores.shape[-1] - self.length
        if edit.added is not None:
            scores = scores + functional.pad(edit.added, (0, extra)).to(scores)
        out = func(scores, *args[1:], **kwargs)
        if func in _LOG_SUM:
            return out
        self.seen.append(self.block)
        if edit.factor is not None:
            kept = functional.pad(edit.factor, (0, extra), value=1.0)
            out = out * kept.to(out)
        return out

    def _over_keys(self, args: tuple) -> bool:
        shape = args[0].shape if args else ()
        keys = (self.length, self.length + 1)
        return len(shape) == 4 and shape[-2] == self.length and shape[-1] in keys


# --- The interventions as edits of stock attention ---


class StockStates(NamedTuple):
    """What stock attention gives under an intervention."""

    layers: slice  # of all layers, those that it was read at
    states: Tensor  # [sample, layer, width], at each sample's last token


def stock_under(
    model: Model, samples: tuple[TokenPositions, ...], kind: Intervention
) -> list[StockStates]:
    """The states of samples by stock attention under an intervention.

    A window needs a pass for each layer it is read at; the others hold every layer at once.
    """
    heads = model.lm.config.get_text_config().num_attention_heads
    rows = [sample.ids for sample in samples]
    every = window_of(kind.layers) is None
    found = []
    for depth in [model.blocks] if every else sorted({min(2, model.blocks), model.blocks}):
        edits = edits_for(samples, kind, layer=depth, heads=heads)
        layers = slice(0 if every else depth - 1, depth)
        states = stock_states(model, rows, edits, depth=depth)
        found.append(StockStates(layers, states[:, layers]))
    return found


def edits_for(
    samples: tuple[TokenPositions, ...], kind: Intervention, *, layer: int, heads: int
) -> Edits:
    """The edits of one intervention, for the states of one layer."""
    length = max(len(s.ids) for s in samples)
    gone = torch.stack([_edges(s, kind, length) for s in samples])[:, None]
    width = window_of(kind.layers) or layer

    def edits(block: int) -> Edit | None:
        if not layer - width < block <= layer:
            return None
        edges = gone
        if kind.heads is not None:
            cut = {head for at, head in kind.heads if at == block}
            edges = gone & torch.tensor([h in cut for h in range(heads)])[None, :, None, None]
        if kind.where == "post":
            return Edit(factor=(~edges).float())
        change = -math.inf if kind.boost is None else kind.boost
        return Edit(added=torch.where(edges, change, 0.0))

    return edits


def _edges(sample: TokenPositions, kind: Intervention, length: int) -> Tensor:
    """Which edges [query, key] change."""
    at = torch.arange(length)
    is_key = torch.isin(at, torch.tensor(sample.exact_question))
    asks = ~is_key
    if kind.boost is not None:
        asks = torch.isin(at, torch.tensor(sample.exact_answer))
    return (at[:, None] > at) & is_key & asks[:, None]


# --- How far two states are apart, and how far rounding alone may move them ---


_TOLERANCE = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
# Deep models with large activations round further in half precision: as far as transformers' own
# two ways of attention differ on this very model, and a little more.
_SLACK = 4.0


def distance(a: Tensor, b: Tensor) -> float:
    """The largest distance of two states [..., width]; see `apart`."""
    return float(apart(a, b).max())


def apart(a: Tensor, b: Tensor) -> Tensor:
    """How far states [..., width] are apart, [...]: the mean share of their values' size.

    A mean over the width, each value against itself and the layer's usual size: the few values of
    a residual stream that are a thousand times larger than the rest would hide all else.
    """
    a, b = a.float(), b.float()
    size = b.abs() + b.abs().mean(dim=-1, keepdim=True).clamp(min=1e-9)
    far = ((a - b).abs() / size).mean(dim=-1)
    # A NaN, on either side, is as far as anything can be.
    return far.nan_to_num(torch.inf, posinf=torch.inf)


def rounding(model: Model, rows: Sequence[Sequence[int]], eager: Stock) -> float:
    """How far states may be apart and still be the same but for rounding."""
    usual = _TOLERANCE.get(model.dtype, _TOLERANCE[torch.bfloat16])
    if model.dtype == torch.float32 or not model.lm._supports_sdpa:
        return usual
    other = stock_pass(model, rows, attention="sdpa")
    # A mean over tokens: the largest is that of one odd token, and would hide a real difference.
    size = eager.states.float().abs()
    size = size + size.mean(dim=-1, keepdim=True).clamp(min=1e-9)
    apart = (other.states.float() - eager.states.float()).abs() / size
    return max(usual, _SLACK * float(apart.mean(dim=(0, 1, 3)).max()))
