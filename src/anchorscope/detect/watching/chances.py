"""How likely the tokens in a model's cache were, from the logits that stood before each of them.

Logits are large, so those of the newest pass alone are kept: a token's log-probability is taken
when the token is fed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

KEPT = 32  # positions of a pass whose logits are kept: more than decoding with candidates tries


class Chance(NamedTuple):
    """A token's log-probability, and the entropy of the distribution it was chosen from."""

    log_prob: float
    entropy: float


class Chances:
    """Log-probabilities by position, following the model's cache."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Tensor]] = {}  # log-probability and entropy, [row]
        self._before: dict[int, Tensor] = {}  # by the position they speak of: logits [row, word]
        self._ids: Tensor | None = None  # [row, position], as of the newest pass

    def see(self, start: int, ids: Tensor, logits: Tensor) -> None:
        """Takes a pass that fed the tokens [row, position] in the cache from `start` on.

        Its logits [row, token, word] may be those of its last tokens alone.
        """
        end, same = ids.shape[1], self._unchanged(ids)
        logits = logits.detach()[:, -KEPT:].clone()  # generate forbids tokens in place
        new = {end + 1 - logits.shape[1] + n: logits[:, n] for n in range(logits.shape[1])}
        # What is known of a position holds while nothing before it was written over.
        old = {at: of for at, of in self._before.items() if at <= same}
        self._known = {at: of for at, of in self._known.items() if at < same}
        for at in range(start, end):
            before = old.get(at, new.get(at))
            if at not in self._known and before is not None:
                self._known[at] = _chances(before, ids[:, at])
        self._before, self._ids = new, ids

    def _unchanged(self, ids: Tensor) -> int:
        """How many positions hold the tokens they held before."""
        if self._ids is None or len(self._ids) != len(ids):
            return 0
        count = min(self._ids.shape[1], ids.shape[1])
        alike = (self._ids[:, :count] == ids[:, :count]).all(dim=0)
        return int(alike.int().cumprod(dim=0).sum())

    def of(self, row: int, at: int, token: int) -> Chance | None:
        """The chance of a row's token at a position; None where nothing is known of it."""
        if at in self._known and self._ids is not None and int(self._ids[row, at]) == token:
            log_prob, entropy = self._known[at]
            return Chance(float(log_prob[row]), float(entropy[row]))
        if at not in self._before:
            return None
        # Chosen and not fed any more; a candidate that was refused may stand in its place.
        before = self._before[at][row : row + 1]
        log_prob, entropy = _chances(before, torch.tensor([token], device=before.device))
        return Chance(float(log_prob), float(entropy))


def _chances(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability of each row's token and the entropy of its distribution, [row]."""
    every = torch.log_softmax(logits.float(), dim=-1)
    entropy = -(every.exp() * every).nan_to_num(0.0).sum(dim=-1)
    return every.gather(1, tokens[:, None].to(every.device))[:, 0], entropy
