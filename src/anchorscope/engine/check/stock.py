"""States from transformers' own (stock) attention, with interventions made at the softmax.

Independent of the engine on purpose. No packing, no cache, no mask of ours: each row runs whole
through eager attention, and an intervention edits the scores or weights at the softmax, however
the model computes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from anchorscope.engine.attention import attention_named
from anchorscope.engine.interventions import Intervention, TokenPositions, window_of
from anchorscope.engine.layout import UnsupportedModel
from anchorscope.engine.lease import apart
from anchorscope.models import Model

_SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)
_LOG_SUM = (torch.logsumexp, Tensor.logsumexp)  # how some models apply an attention sink


class Stock(NamedTuple):
    """Whole rows by stock attention, padded on the right."""

    states: Tensor  # [row, token, layer, width]
    logits: Tensor  # [row, token, vocabulary]
    hidden: tuple[Tensor, ...]  # output_hidden_states


@dataclass(frozen=True)
class Cut:
    """The edges that an intervention changes in whole rows, for the states of one layer."""

    kind: Intervention
    edges: Tensor  # bool [row, 1, query, key]
    layer: int  # from 1

    def edges_in(self, block: int, heads: int) -> Tensor | None:
        """The edges that change in a block, bool [row, 1 or head, query, key]; None: none."""
        if not self.layer - (window_of(self.kind.layers) or self.layer) < block <= self.layer:
            return None
        if self.kind.heads is None:
            return self.edges
        chosen = torch.tensor([(block, head) in self.kind.heads for head in range(heads)])
        return self.edges & chosen[None, :, None, None]


@torch.no_grad()
def stock_pass(
    model: Model,
    rows: Sequence[Sequence[int]],
    cut: Cut | None = None,
    *,
    attention: str = "eager",
) -> Stock:
    """Run whole rows through stock attention: states and logits at every token."""
    length = max(len(row) for row in rows)
    # Tokens see only earlier ones, so padding on the right changes nothing.
    padded = [[*row, *[row[-1]] * (length - len(row))] for row in rows]
    tokens, states = torch.tensor(padded, device=model.device), []
    scores = _Scores(cut, length)

    def begin(number: int, module: nn.Module, args: tuple) -> None:
        scores.block = number

    def keep(module: nn.Module, args: tuple, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple | list) else output)

    with ExitStack() as stack:
        stack.enter_context(attention_named(model.lm, attention))
        for number, block in enumerate(model.parts.blocks, start=1):
            stack.callback(block.register_forward_pre_hook(partial(begin, number)).remove)
            stack.callback(block.register_forward_hook(keep).remove)
        if attention == "eager":
            stack.enter_context(scores)
        out = model.lm(tokens, use_cache=False, output_hidden_states=True)
    if attention == "eager" and scores.seen != list(range(1, model.blocks + 1)):
        raise UnsupportedModel(
            "its eager attention does not show one softmax over the keys in every block, so "
            "there is nothing to compare with"
        )
    states = [state.to(model.device) for state in states]  # blocks may be on several devices
    return Stock(torch.stack(states, dim=2), out.logits, out.hidden_states)


def stock_states(model: Model, rows: Sequence[Sequence[int]], cut: Cut | None = None) -> Tensor:
    """States [row, layer, width] at each row's last token by stock attention."""
    states = stock_pass(model, rows, cut).states
    return states[torch.arange(len(rows)), [len(row) - 1 for row in rows]]


class _Scores(TorchFunctionMode):
    """Edit the scores or the weights of every softmax over the keys."""

    def __init__(self, cut: Cut | None, length: int) -> None:
        super().__init__()
        self.cut, self.length, self.block = cut, length, 0
        self.seen: list[int] = []  # the blocks that showed a softmax over their keys

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not (func in _SOFTMAX or func in _LOG_SUM) or not self._over_keys(args):
            return func(*args, **kwargs)
        scores, *others = args
        edges = self.cut.edges_in(self.block, scores.shape[1]) if self.cut else None
        after = False
        if self.cut and edges is not None:
            # A sink, where there is one, is the last column.
            edges = functional.pad(edges, (0, scores.shape[-1] - self.length)).to(scores.device)
            after = self.cut.kind.where == "post"
            if not after:
                boost = self.cut.kind.boost
                added = -math.inf if boost is None else boost
                scores = torch.where(edges, scores + added, scores)
        out = func(scores, *others, **kwargs)
        if func in _LOG_SUM:
            return out
        self.seen.append(self.block)
        return out.masked_fill(edges, 0.0) if after else out

    def _over_keys(self, args: tuple) -> bool:
        shape = args[0].shape if args else ()
        keys = (self.length, self.length + 1)
        return len(shape) == 4 and shape[-2] == self.length and shape[-1] in keys


def stock_under(
    model: Model, samples: Sequence[TokenPositions], kind: Intervention, *, layer: int
) -> Tensor:
    """States [sample, layer, width] at each last token under an intervention, up to one layer."""
    rows = [sample.ids for sample in samples]
    at = torch.arange(max(map(len, rows)))
    edges = []
    for sample in samples:
        is_key = torch.isin(at, torch.tensor(sample.exact_question))
        boosted = torch.isin(at, torch.tensor(sample.exact_answer))
        queries = ~is_key if kind.boost is None else boosted
        edges.append((at[:, None] > at) & is_key & queries[:, None])
    return stock_states(model, rows, Cut(kind, torch.stack(edges)[:, None], layer))


# --- How far rounding alone may move states ---


_TOLERANCE = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
# Deep models with large activations round further in half precision: a multiple of how far
# transformers' own two attentions differ on the same model.
_SLACK = 4.0


def rounding(model: Model, rows: Sequence[Sequence[int]], eager: Stock) -> float:
    """The largest difference between states that rounding alone may cause."""
    usual = _TOLERANCE.get(model.dtype, _TOLERANCE[torch.bfloat16])
    if model.dtype == torch.float32 or not model.lm._supports_sdpa:
        return usual
    other = stock_pass(model, rows, attention="sdpa")
    # A mean over tokens: the largest is that of one odd token, and would hide a real difference.
    far = apart(other.states, eager.states).mean(dim=(0, 1))
    return max(usual, _SLACK * float(far.max()))
