"""States by stock attention: whole rows, transformers' own code, edits at the softmax alone.

Independent of the engine on purpose. No packing, no memory, no mask of ours: each row runs whole
through eager attention, and what an intervention changes is changed where the scores become
weights, whatever way the model made them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from anchorscope.engine.attention import attention_named
from anchorscope.engine.interventions import Intervention, TokenPositions, window_of
from anchorscope.engine.layout import UnsupportedModel
from anchorscope.engine.packs import apart
from anchorscope.models import Model

_SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)
_LOG_SUM = (torch.logsumexp, Tensor.logsumexp)  # how some models let a sink take its share


@dataclass(frozen=True)
class Edit:
    """A change to a block's attention; both parts are [row, 1 or head, query, key]."""

    added: Tensor | None = None  # to the scores
    factor: Tensor | None = None  # of the weights


Edits = Callable[[int], Edit | None]  # of a block, from 1


class Stock(NamedTuple):
    """Whole rows by stock attention, padded on the right."""

    states: Tensor  # [row, token, layer, width]
    logits: Tensor  # [row, token, vocabulary]
    hidden: tuple[Tensor, ...]  # output_hidden_states


@torch.no_grad()
def stock_pass(
    model: Model,
    rows: Sequence[Sequence[int]],
    edits: Edits = lambda block: None,
    *,
    attention: str = "eager",
) -> Stock:
    """States and logits at every token; nothing looks ahead, so padding is on the right."""
    length = max(len(row) for row in rows)
    padded = [[*row, *[row[-1]] * (length - len(row))] for row in rows]
    tokens, states = torch.tensor(padded, device=model.device), []
    scores = _Scores(edits, length, edited=attention == "eager")

    def keep(module: nn.Module, args: tuple, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple | list) else output)

    with ExitStack() as stack:
        stack.enter_context(attention_named(model.lm, attention))
        for number, block in enumerate(model.parts.blocks, start=1):
            stack.callback(block.register_forward_pre_hook(scores.begin(number)).remove)
            stack.callback(block.register_forward_hook(keep).remove)
        stack.enter_context(scores)
        out = model.lm(tokens, use_cache=False, output_hidden_states=True)
    if attention == "eager" and scores.seen != list(range(1, model.blocks + 1)):
        raise UnsupportedModel(
            "its eager attention does not show one softmax over the keys in every block, so "
            "there is nothing to compare with"
        )
    states = [state.to(model.device) for state in states]  # blocks may be on several devices
    return Stock(torch.stack(states, dim=2), out.logits, out.hidden_states)


def stock_states(model: Model, rows: Sequence[Sequence[int]], edits: Edits) -> Tensor:
    """The states [row, layer, width] at each row's last token."""
    states = stock_pass(model, rows, edits).states
    return states[torch.arange(len(rows)), [len(row) - 1 for row in rows]]


class _Scores(TorchFunctionMode):
    """Edit the scores and the weights of every softmax over the keys."""

    def __init__(self, edits: Edits, length: int, *, edited: bool) -> None:
        super().__init__()
        self.edits, self.length, self.edited = edits, length, edited
        self.block = 0
        self.seen: list[int] = []  # the blocks that showed a softmax over their keys

    def begin(self, number: int) -> Callable[[nn.Module, tuple], None]:
        """A hook that notes which block runs."""

        def hook(module: nn.Module, args: tuple) -> None:
            self.block = number

        return hook

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        weighs = func in _SOFTMAX or func in _LOG_SUM
        if not self.edited or not weighs or not self._over_keys(args):
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
            out = out * functional.pad(edit.factor, (0, extra), value=1.0).to(out)
        return out

    def _over_keys(self, args: tuple) -> bool:
        shape = args[0].shape if args else ()
        keys = (self.length, self.length + 1)
        return len(shape) == 4 and shape[-2] == self.length and shape[-1] in keys


# --- The interventions as edits of stock attention ---


def stock_under(
    model: Model, samples: tuple[TokenPositions, ...], kind: Intervention
) -> dict[int, Tensor]:
    """States [sample, layer, width] at each sample's last token under an intervention.

    By the layer, from 1, up to which they hold for it. A window needs a pass for each layer that
    it is read at; of the others one pass holds every layer at once.
    """
    every = window_of(kind.layers) is None
    depths = [model.blocks] if every else sorted({min(2, model.blocks), model.blocks})
    rows = [sample.ids for sample in samples]
    return {
        depth: stock_states(model, rows, edits_for(model, samples, kind, layer=depth))
        for depth in depths
    }


def edits_for(
    model: Model, samples: tuple[TokenPositions, ...], kind: Intervention, *, layer: int
) -> Edits:
    """The edits of one intervention, for the states of one layer."""
    heads = model.lm.config.get_text_config().num_attention_heads
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


# --- How far rounding alone may move states ---


_TOLERANCE = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
# Deep models with large activations round further in half precision: as far as transformers' own
# two ways of attention differ on this very model, and a little more.
_SLACK = 4.0


def rounding(model: Model, rows: Sequence[Sequence[int]], eager: Stock) -> float:
    """How far states may be apart and still be the same but for rounding."""
    usual = _TOLERANCE.get(model.dtype, _TOLERANCE[torch.bfloat16])
    if model.dtype == torch.float32 or not model.lm._supports_sdpa:
        return usual
    other = stock_pass(model, rows, attention="sdpa")
    # A mean over tokens: the largest is that of one odd token, and would hide a real difference.
    far = apart(other.states, eager.states).mean(dim=(0, 1))
    return max(usual, _SLACK * float(far.max()))
