"""The changes to a forward pass, as data: which keys are cut, in which blocks, how."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from anchorscope.errors import UserError, unknown

Keys = Literal["exact", "question", "random"]
Where = Literal["pre", "post"]


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """A knockout (METHOD §2), or the pass over the answer alone."""

    name: str
    keys: Keys = "exact"
    where: Where = "pre"
    layers: str = "cumulative"  # cumulative, window:w, single
    heads: tuple[tuple[int, int], ...] | None = None  # (block from 1, head from 0); None is all
    answer_only: bool = False

    def __post_init__(self) -> None:
        if self.keys not in get_args(Keys):
            raise unknown("keys", self.keys, get_args(Keys))
        if self.where not in get_args(Where):
            raise unknown("where", self.where, get_args(Where))
        window_of(self.layers)


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


KNOCKOUT = Intervention(name="knockout")
RANDOM = Intervention(name="random", keys="random")
QUESTION = Intervention(name="question", keys="question")
ANSWER_ONLY = Intervention(name="answer-only", answer_only=True)


@dataclass(frozen=True, kw_only=True)
class Marked:
    """The token positions of one answered question that interventions speak of."""

    id: str
    ids: tuple[int, ...]  # prompt + answer, up to the probe position, which is the last
    answer_at: int  # the position of the first answer token
    question: tuple[int, ...]
    exact: tuple[int, ...]


def keys_of(marked: Marked, keys: Keys, *, seed: int) -> tuple[int, ...]:
    """The key positions that are cut; the first token, the attention sink, is never one."""
    if keys == "exact":
        chosen: Sequence[int] = marked.exact
    elif keys == "question":
        chosen = marked.question
    else:
        chosen = _random(marked, seed)
    return tuple(position for position in chosen if position > 0)


def _random(marked: Marked, seed: int) -> list[int]:
    """As many prompt tokens outside E_Q as E_Q has, drawn by seed and question id."""
    taken = {0, *marked.exact}
    others = [position for position in range(marked.answer_at) if position not in taken]
    count = min(len([p for p in marked.exact if p > 0]), len(others))
    digest = hashlib.sha256(f"{seed}:{marked.id}".encode()).digest()
    generator = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    return sorted(int(p) for p in generator.choice(others, size=count, replace=False))
