"""The changes to a forward pass, as data: which keys are cut, in which blocks, how."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from anchorscope.config import Where
from anchorscope.errors import UserError, unknown
from anchorscope.records import Sample


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """A knockout, a reweighting, or the pass over the answer alone.

    With `boost` nothing is cut: the scores of the edges from the keys to E_A get that much more
    before the softmax. `where = post` multiplies their weights by its exponential after it
    instead, and the row no longer sums to 1.
    """

    name: str
    keys: str = "exact"  # a name of KEYS
    where: Where = "pre"
    layers: str = "cumulative"  # cumulative, window:w, single
    heads: tuple[tuple[int, int], ...] | None = None  # (block from 1, head from 0); None is all
    answer_only: bool = False
    boost: float | None = None

    def __post_init__(self) -> None:
        if self.boost is not None and not math.isfinite(self.boost):
            raise UserError(
                f"boost is {self.boost}. Accepted: a finite number; a knockout has none."
            )
        if self.keys not in KEYS:
            raise unknown("keys", self.keys, KEYS)
        if self.where not in get_args(Where):
            raise unknown("where", self.where, get_args(Where))
        window_of(self.layers)

    @property
    def hides_keys(self) -> bool:
        """Whether no later token outside the keys sees anything of them, in any block or head."""
        everywhere = self.heads is None and window_of(self.layers) is None
        return everywhere and self.boost is None and self.where == "pre" and not self.answer_only


def window_of(layers: str) -> int | None:
    """How many blocks that end at k are cut: None is all of 1..k."""
    if layers == "cumulative":
        return None
    if layers == "single":
        return 1
    name, _, width = layers.partition(":")
    if name == "window" and width.isdigit() and int(width) > 0:
        return int(width)
    raise UserError(
        f"Unknown layers '{layers}'. Accepted: cumulative, single, window:w with w of 1 or more."
    )


@dataclass(frozen=True, kw_only=True)
class TokenPositions:
    """The token positions of one answered question that interventions speak of."""

    id: str
    ids: tuple[int, ...]  # prompt + answer, up to the probe position, which is the last
    answer_at: int  # the position of the first answer token
    question_tokens: tuple[int, ...]
    exact_question: tuple[int, ...]  # E_Q
    exact_answer: tuple[int, ...] = ()  # E_A; only reweighting and saliency ask for it
    mass: tuple[float, ...] | None = None  # attention from the probe position to each position
    random: tuple[int, ...] | None = None  # the keys `random`, where they are drawn already


def keys_of(positions: TokenPositions, keys: str, *, seed: int) -> tuple[int, ...]:
    """The key positions that are cut; the first token, the attention sink, is never one."""
    return tuple(position for position in KEYS[keys](positions, seed) if position > 0)


def random_keys(positions: Sequence[TokenPositions], *, seed: int) -> dict[str, tuple[int, ...]]:
    """The keys `random` of many questions, by id."""
    return {of.id: keys_of(of, "random", seed=seed) for of in positions}


def _random(positions: TokenPositions, seed: int) -> Sequence[int]:
    """As many tokens outside E_Q as E_Q has, drawn by seed and question id."""
    if positions.random is not None:
        return positions.random
    others, count = _others(positions)
    digest = hashlib.sha256(f"{seed}:{positions.id}".encode()).digest()
    generator = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    return sorted(int(p) for p in generator.choice(others, size=count, replace=False))


def _matched(positions: TokenPositions) -> list[int]:
    """As many tokens outside E_Q as E_Q has, each as much attended to as one of E_Q.

    Paired greedily, the most attended token of E_Q first.
    """
    assert positions.mass is not None, "the attention mass must be read before keys can be matched"
    mass, (free, _) = positions.mass, _others(positions)
    chosen = []
    for position in sorted(positions.exact_question, key=lambda p: -mass[p]):
        if position > 0 and free:
            nearest = min(free, key=lambda p: (abs(mass[p] - mass[position]), p))
            free.remove(nearest)
            chosen.append(nearest)
    return sorted(chosen)


def _others(positions: TokenPositions) -> tuple[list[int], int]:
    """Where the tokens of a control may come from, and how many of them it takes.

    Tokens of the question where it has enough outside E_Q; else of its turn, which has no worked
    example in it; else of the whole prompt. A control among worked examples moves less than any
    token of the question would, and is beaten too easily. Never the first token.
    """
    taken = {0, *positions.exact_question}
    count = len([p for p in positions.exact_question if p > 0])
    turn = min(positions.question_tokens, default=0)
    pools = (
        positions.question_tokens,
        range(turn, positions.answer_at),
        range(positions.answer_at),
    )
    others: list[int] = []
    for pool in pools:
        others = [position for position in pool if position not in taken]
        if len(others) >= count:
            break
    return others, min(count, len(others))


# Which keys an intervention speaks of, by name: a rule of the positions and the run's seed.
KEYS: Mapping[str, Callable[[TokenPositions, int], Sequence[int]]] = {
    "exact": lambda positions, seed: positions.exact_question,
    "question": lambda positions, seed: positions.question_tokens,
    "random": lambda positions, seed: _random(positions, seed),
    "matched": lambda positions, seed: _matched(positions),
}


def positions_of(sample: Sample) -> TokenPositions:
    """The positions of a sample that interventions speak of."""
    written = len(sample.prompt_ids)
    last = sample.exact_answer[-1] - written
    return TokenPositions(
        id=sample.id,
        ids=sample.prompt_ids + sample.answer.token_ids[: last + 1],
        answer_at=written,
        question_tokens=sample.question_tokens,
        exact_question=sample.exact_question,
        exact_answer=sample.exact_answer,
    )
