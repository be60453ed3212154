"""Reference for interventions: scores or weights are changed at the softmax of stock attention.

Independent of the engine and of the doctor on purpose. Each row goes through stock eager attention
alone, without padding, while torch's softmax is patched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from anchorscope.models import Model

Edge = Callable[[int, int], bool]  # query position, key position
Cut = Callable[[int, int, int, int], bool]  # row, block from 1, query position, key position


@dataclass(frozen=True)
class Change:
    """A change to some attention edges of every block."""

    added: float = -math.inf  # to their scores
    post: bool = False  # instead their weights are multiplied by its exponential
    heads: frozenset[tuple[int, int]] | None = None  # (block from 1, head from 0); None is all


def plain_states(
    model: Model,
    rows: Sequence[Sequence[int]],
    cut: Cut = lambda row, block, query, key: False,
) -> Tensor:
    """States [row, layer, width] after every block at each row's last token."""
    passes = [_plain_pass(model, row, partial(cut, n), Change())[0] for n, row in enumerate(rows)]
    return torch.stack(passes)


def plain_logits(
    model: Model,
    rows: Sequence[Sequence[int]],
    cut: Cut = lambda row, block, query, key: False,
) -> list[Tensor]:
    """The logits [token, vocabulary] at every position of each row."""
    return [_plain_pass(model, row, partial(cut, n), Change())[1] for n, row in enumerate(rows)]


def plain_scores(model: Model, row: Sequence[int], edge: Edge, change: Change) -> Tensor:
    """States [layer, width] after every block at the row's last token, edges changed in all."""
    return _plain_pass(model, row, lambda block, query, key: edge(query, key), change)[0]


def _plain_pass(
    model: Model, row: Sequence[int], cut: Callable[[int, int, int], bool], change: Change
) -> tuple[Tensor, Tensor]:
    """The states of the last token and the logits of every one."""
    size = range(len(row))
    edges = [
        torch.tensor([[k < q and cut(block, q, k) for k in size] for q in size])
        for block in range(1, model.blocks + 1)
    ]
    kept: list[Tensor] = []
    running = _Running(edges, change)
    before = model.lm.config._attn_implementation
    with ExitStack() as stack, torch.no_grad():
        _eager(model, "eager")
        stack.callback(_eager, model, before)
        for number, block in enumerate(model.parts.blocks):
            begin = block.register_forward_pre_hook(running.begin(number + 1))
            stack.callback(begin.remove)
            stack.callback(block.register_forward_hook(_keep(kept)).remove)
        stack.enter_context(running.instead())
        out = model.lm(input_ids=torch.tensor([list(row)]), use_cache=False)
    assert running.seen == list(range(1, model.blocks + 1)), "a block showed no softmax, or two"
    return torch.stack(kept), out.logits[0]


def eager_mass(model: Model, ids: Sequence[int]) -> tuple[float, ...]:
    """The last token's attention weights, mean over blocks and heads, by output_attentions."""
    before = model.lm.config._attn_implementation
    model.lm.set_attn_implementation("eager")
    with torch.no_grad():
        out = model.lm(torch.tensor([list(ids)]), output_attentions=True)
    model.lm.set_attn_implementation(before)
    return tuple(torch.stack([w[0, :, -1].mean(0) for w in out.attentions]).mean(0).tolist())


def _eager(model: Model, name: str) -> None:
    # Set directly: some models that look at it refuse to have it set.
    for config in {
        id(m.config): m.config for m in model.lm.modules() if hasattr(m, "config")
    }.values():
        config._attn_implementation_internal = name


def _keep(kept: list[Tensor]):
    def hook(module, args, output):
        kept.append((output[0] if isinstance(output, tuple | list) else output)[0, -1])

    return hook


class _Running:
    """Patch torch's softmax while a model runs, and track which block calls it."""

    def __init__(self, edges: list[Tensor], change: Change) -> None:
        self.edges, self.change = edges, change  # edges [query, key] of each block
        self.block, self.seen, self.within = 0, [], False

    def begin(self, block: int):
        def hook(module, args):
            self.block = block

        return hook

    @contextmanager
    def instead(self) -> Iterator[None]:
        places = [(torch, "softmax"), (functional, "softmax"), (Tensor, "softmax"),
                  (torch, "logsumexp"), (Tensor, "logsumexp")]  # fmt: skip
        own = [(module, name, getattr(module, name)) for module, name in places]
        try:
            for module, name, function in own:
                setattr(module, name, self._changed(function, sums=name == "logsumexp"))
            yield
        finally:
            for module, name, function in own:
                setattr(module, name, function)

    def _changed(self, function, *, sums: bool):
        def changed(scores, *args, **kwargs):
            size = len(self.edges[0])
            keys = scores.shape[-1] - size  # 1 where there is an attention sink
            if self.within or scores.dim() != 4 or scores.shape[-2] != size or keys not in (0, 1):
                return function(scores, *args, **kwargs)
            hit = functional.pad(self._edges(scores.shape[1]), (0, keys)).to(scores.device)
            if not self.change.post:
                scores = torch.where(hit, scores + self.change.added, scores)
            self.within = True  # torch's functions call one another
            out = function(scores, *args, **kwargs)
            self.within = False
            if sums:
                return out
            self.seen.append(self.block)
            return (
                torch.where(hit, out * math.exp(self.change.added), out)
                if self.change.post
                else out
            )

        return changed

    def _edges(self, heads: int) -> Tensor:
        """The edges that change in this block, bool [1, head, query, key]."""
        chosen = self.change.heads
        hit = [chosen is None or (self.block, h) in chosen for h in range(heads)]
        return self.edges[self.block - 1] & torch.tensor(hit)[None, :, None, None]
