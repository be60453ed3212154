"""Record the tokens that pass through a model, their states and how likely each was.

The record follows the model's cache. A pass that goes on from position n first forgets everything
from n on, so candidates that were tried and refused leave no trace, and a pass that begins at 0
starts a new record. It does not matter how many passes there are or how many tokens each takes.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anchorscope.models import Model

# Of the last tokens of a pass states and logits are kept: more than decoding with candidates tries
# at once, and a bound for prompts. States that were not kept can be fed again.
KEPT = 32
UNSEEN = -1  # the token of a position that was filled before the record began


class TokenProbability(NamedTuple):
    """A token's log-probability, and the entropy of the distribution it was chosen from."""

    log_prob: float
    entropy: float


class ForwardRecorder:
    """The tokens in the model's cache, and the states of the newest, while it is open."""

    def __init__(self, model: Model, *, token_log_probs: bool = False) -> None:
        self.model = model
        self.probabilities = TokenProbabilities() if token_log_probs else None
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
        """Start recording."""
        parts = self.model.parts
        embedding: Any = self.model.lm.get_input_embeddings()
        self._hooks = [
            embedding.register_forward_pre_hook(self._see_tokens),
            parts.decoder.register_forward_pre_hook(self._begin, with_kwargs=True),
            parts.decoder.register_forward_hook(self._end),
            *(block.register_forward_hook(self._catch) for block in parts.blocks),
        ]
        if self.probabilities is not None:
            self._hooks.append(self.model.lm.register_forward_hook(self._see_logits))

    def close(self) -> None:
        """Take the hooks off the model; the record stays."""
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

        handles = [block.register_forward_hook(hook) for block in self.model.parts.blocks]
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
        passed = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        passed |= passed.get("kwargs", {})
        past, mask = passed.get("past_key_values"), passed.get("attention_mask")
        self._start = 0 if past is None else int(past.get_seq_length())
        self.masked = mask is not None
        self._mask = mask if isinstance(mask, Tensor) and mask.dim() == 2 else None
        self._caught = []

    def _catch(self, module: Any, args: tuple, output: Any) -> None:
        hidden = _hidden(output).detach()
        # A copy, so that the states of a whole prompt can be freed.
        kept = hidden[:, -KEPT:]
        self._caught.append(kept.clone() if hidden.shape[1] > KEPT else kept)

    def _end(self, module: Any, args: tuple, output: Any) -> None:
        rows, count = output[0].shape[:2]
        fed = self._fed
        if fed is None or fed.shape != (rows, count):
            fed = torch.full((rows, count), UNSEEN)
        self._forget(rows, fed)
        self._ids.append(fed.detach())
        self._length += count
        if len(self._caught) == len(self.model.parts.blocks):
            home = self._caught[0].device
            states = torch.stack([hidden.to(home) for hidden in self._caught], dim=2)
            for n in range(states.shape[1]):
                self._states[self._length - states.shape[1] + n] = states[:, n]
        self._fed, self._caught = None, []

    def _see_logits(self, module: Any, args: tuple, output: Any) -> None:
        assert self.probabilities is not None
        logits = output.logits if hasattr(output, "logits") else output[0]
        self.probabilities.see(self._start, self.ids, logits)

    def _forget(self, rows: int, like: Tensor) -> None:
        """Forget what the pass under way writes over."""
        if self._start == self._length and self._ids and len(self._ids[0]) == rows:
            return
        kept = self.ids[:, : self._start] if self._start else like.new_empty(rows, 0)
        if kept.shape != (rows, self._start):
            kept = like.new_full((rows, self._start), UNSEEN)
            self._states.clear()
        self._ids, self._length = [kept.to(like.device)], self._start
        self._states = {at: states for at, states in self._states.items() if at < self._start}


class TokenProbabilities:
    """Log-probabilities of the tokens in the cache, by position.

    Logits are large, so those of the newest pass alone are kept: a token's log-probability is
    taken when the token is fed.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Tensor]] = {}  # log-probability and entropy, [row]
        self._next: dict[int, Tensor] = {}  # logits [row, word] for the token at a position
        self._ids: Tensor | None = None  # [row, position], as of the newest pass

    def see(self, start: int, ids: Tensor, logits: Tensor) -> None:
        """Take a pass that fed the tokens [row, position] in the cache from `start` on.

        Its logits [row, token, word] may be those of its last tokens alone.
        """
        end, same = ids.shape[1], self._unchanged(ids)
        logits = logits.detach()[:, -KEPT:].clone()  # generate forbids tokens in place
        new = {end + 1 - logits.shape[1] + n: logits[:, n] for n in range(logits.shape[1])}
        # What is known of a position holds while nothing before it was written over.
        old = {at: kept for at, kept in self._next.items() if at <= same}
        self._known = {at: kept for at, kept in self._known.items() if at < same}
        for at in range(start, end):
            before = old.get(at, new.get(at))
            if at not in self._known and before is not None:
                self._known[at] = _probabilities(before, ids[:, at])
        self._next, self._ids = new, ids

    def _unchanged(self, ids: Tensor) -> int:
        """How many positions hold the tokens they held before."""
        if self._ids is None or len(self._ids) != len(ids):
            return 0
        count = min(self._ids.shape[1], ids.shape[1])
        alike = (self._ids[:, :count] == ids[:, :count]).all(dim=0)
        return int(alike.int().cumprod(dim=0).sum())

    def at(self, row: int, position: int, token: int) -> TokenProbability | None:
        """How likely a row's token at a position was; None where that is not known."""
        known = self._ids is not None and position in self._known
        if known and self._ids is not None and int(self._ids[row, position]) == token:
            log_prob, entropy = self._known[position]
            return TokenProbability(float(log_prob[row]), float(entropy[row]))
        if position not in self._next:
            return None
        # Chosen and not fed any more; a candidate that was refused may be in its place.
        before = self._next[position][row : row + 1]
        log_prob, entropy = _probabilities(before, torch.tensor([token], device=before.device))
        return TokenProbability(float(log_prob), float(entropy))


def _probabilities(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability of each row's token and the entropy of its distribution, [row]."""
    every = torch.log_softmax(logits.float(), dim=-1)
    entropy = -(every.exp() * every).nan_to_num(0.0).sum(dim=-1)
    return every.gather(1, tokens[:, None].to(every.device))[:, 0], entropy


def _hidden(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output
