"""Reference for interventions that no mask expresses: change scores or weights at the softmax.

Independent of the engine and of the doctor on purpose. Each row goes through stock eager attention
alone, without padding, while torch's softmax is patched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from anchorscope.models import Model

Edge = Callable[[int, int], bool]  # query position, key position


@dataclass(frozen=True)
class Change:
    """A change to some attention edges of every block."""

    added: float = -math.inf  # to their scores
    post: bool = False  # instead their weights are multiplied by its exponential
    heads: frozenset[tuple[int, int]] | None = None  # (block from 1, head from 0); None is all


def plain_scores(
    model: Model,
    row: tuple[int, ...],
    edge: Edge,
    change: Change,
    inside: Callable[[int], bool] = lambda block: True,
) -> Tensor:
    """States [layer, width] after every block at the row's last token."""
    size = len(row)
    edges = torch.tensor([[k < q and edge(q, k) for k in range(size)] for q in range(size)])
    kept: list[Tensor] = []
    running = _Running(edges, change, inside)
    before = model.lm.config._attn_implementation
    with ExitStack() as stack, torch.no_grad():
        _eager(model, "eager")
        stack.callback(_eager, model, before)
        for number, block in enumerate(model.parts.blocks):
            begin = block.register_forward_pre_hook(running.begin(number + 1))
            stack.callback(begin.remove)
            stack.callback(block.register_forward_hook(_keep(kept)).remove)
        stack.enter_context(running.instead())
        model.lm(input_ids=torch.tensor([row]), use_cache=False)
    assert running.seen == list(range(1, model.blocks + 1)), "a block showed no softmax, or two"
    return torch.stack(kept)


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

    def __init__(self, edges: Tensor, change: Change, inside: Callable[[int], bool]) -> None:
        self.edges, self.change, self.inside = edges, change, inside
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
            size = len(self.edges)
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
        hit = [self.inside(self.block) and (chosen is None or (self.block, h) in chosen)
              for h in range(heads)]  # fmt: skip
        return self.edges & torch.tensor(hit)[None, :, None, None]
