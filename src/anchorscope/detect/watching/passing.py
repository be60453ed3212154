"""What passes through a model in somebody else's hands: the tokens it was fed, and their states.

The record follows the model's cache. A pass that goes on from position n first forgets everything
from n on, so candidates that were tried and refused leave no trace, and a pass that begins at 0
begins anew. It never matters how many passes there were, or how many tokens each of them took.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anchorscope.detect.watching.chances import Chances
from anchorscope.models import Model

# Of the last tokens of a pass the states are kept: more than decoding with candidates tries at
# once, and a bound for prompts. What was not kept can be fed again.
KEPT = 32
UNSEEN = -1  # the token of a position that was filled before the record began


class Passing:
    """The tokens in the model's cache, and the states of the newest, while it is open."""

    def __init__(self, model: Model, layers: Sequence[int], *, chances: bool = False) -> None:
        self.model, self.layers = model, tuple(layers)
        self.chances = Chances() if chances else None  # how likely the tokens were, if wanted
        self.masked = False  # whether the last pass was given a mask of any form
        self._mask: Tensor | None = None  # [row, position], 0 for padding, where it was plain
        self._ids: list[Tensor] = []  # [row, token] each, one after the other
        self._length = 0
        self._states: dict[int, Tensor] = {}  # by position: [row, layer, width]
        self._fed: Tensor | None = None
        self._start = 0
        self._caught: list[Tensor] = []  # of the pass under way, [row, token, width] each
        self._hooks: list[Any] = []

    def open(self) -> None:
        """Begins to look on."""
        parts = self.model.parts
        embedding: Any = self.model.lm.get_input_embeddings()
        self._hooks = [
            embedding.register_forward_pre_hook(self._see_tokens),
            parts.decoder.register_forward_pre_hook(self._begin, with_kwargs=True),
            parts.decoder.register_forward_hook(self._end),
            *(parts.blocks[k - 1].register_forward_hook(self._catch) for k in self.layers),
        ]
        if self.chances is not None:
            self._hooks.append(self.model.lm.register_forward_hook(self._see_logits))

    def close(self) -> None:
        """Leaves the model as it was; what was seen stays."""
        while self._hooks:
            self._hooks.pop().remove()

    @property
    def ids(self) -> Tensor:
        """The tokens in the cache, [row, position]; UNSEEN where others had filled it."""
        if len(self._ids) != 1:
            self._ids = [torch.cat(self._ids, dim=1) if self._ids else torch.empty(0, 0)]
        return self._ids[0][:, : self._length]

    def padding(self, row: int) -> int | None:
        """How many positions of a row the model did not attend to; None where that is not known."""
        if not self.masked:
            return 0
        return None if self._mask is None else int((self._mask[row] == 0).sum())

    def state(self, row: int, at: int) -> Tensor | None:
        """The states [layer, width] of one position; None where they were not kept."""
        states = self._states.get(at)
        return None if states is None else states[row]

    @torch.no_grad()
    def feed(self, ids: Tensor) -> Tensor:
        """The states [layer, width] at the last of these tokens [token], fed by themselves."""
        was_open = bool(self._hooks)
        self.close()  # this pass is our own, and no part of the record
        caught: list[Tensor] = []

        def hook(module: Any, args: tuple, output: Any) -> None:
            caught.append(_hidden(output)[0, -1].cpu())

        blocks = [self.model.parts.blocks[layer - 1] for layer in self.layers]
        handles = [block.register_forward_hook(hook) for block in blocks]
        try:
            self.model.parts.decoder(input_ids=ids[None].to(self.model.device), use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
            if was_open:
                self.open()
        return torch.stack(caught)

    def _see_tokens(self, module: Any, args: tuple) -> None:
        self._fed = args[0] if args and args[0].dim() == 2 else None

    def _begin(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        given = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        given |= given.get("kwargs", {})
        past, mask = given.get("past_key_values"), given.get("attention_mask")
        self._start = 0 if past is None else int(past.get_seq_length())
        self.masked = mask is not None
        self._mask = mask if isinstance(mask, Tensor) and mask.dim() == 2 else None
        self._caught = []

    def _catch(self, module: Any, args: tuple, output: Any) -> None:
        hidden = _hidden(output).detach()
        # A copy, so that the states of a whole prompt can be let go.
        kept = hidden[:, -KEPT:]
        self._caught.append(kept.clone() if hidden.shape[1] > KEPT else kept)

    def _end(self, module: Any, args: tuple, output: Any) -> None:
        rows, count = output[0].shape[:2]
        fed = self._fed
        if fed is None or fed.shape != (rows, count):
            fed = torch.full((rows, count), UNSEEN)
        self._cut(rows, fed)
        self._ids.append(fed.detach())
        self._length += count
        if len(self._caught) == len(self.layers):
            home = self._caught[0].device
            states = torch.stack([of.to(home) for of in self._caught], dim=2)
            for n in range(states.shape[1]):
                self._states[self._length - states.shape[1] + n] = states[:, n]
        self._fed, self._caught = None, []

    def _see_logits(self, module: Any, args: tuple, output: Any) -> None:
        assert self.chances is not None
        logits = output.logits if hasattr(output, "logits") else output[0]
        self.chances.see(self._start, self.ids, logits)

    def _cut(self, rows: int, like: Tensor) -> None:
        """Forgets what the pass under way writes over."""
        if self._start == self._length and self._ids and len(self._ids[0]) == rows:
            return
        kept = self.ids[:, : self._start] if self._start else like.new_empty(rows, 0)
        if kept.shape != (rows, self._start):
            kept = like.new_full((rows, self._start), UNSEEN)
            self._states.clear()
        self._ids, self._length = [kept.to(like.device)], self._start
        self._states = {at: of for at, of in self._states.items() if at < self._start}


def _hidden(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output
