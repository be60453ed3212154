"""Which tokens of a pack are distinct: those that are not go through the blocks once.

A token's states follow from itself, its position and the tokens that it sees, directly or by way
of others. Questions that begin alike share those of their beginning, as they share the prefix. And
behind a knockout nobody sees what is cut, so rows that differ in nothing else share what follows:
the end of the question, and the answer as far as it is the same.

Tokens get numbers by what they see, each number from those before it, so that equal numbers mean
equal states. Nothing is hashed: a collision would be a wrong state that nobody sees.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np


class Stretch(NamedTuple):
    """The tokens of one row, and what stands in front of them."""

    ids: Sequence[int]
    at: Sequence[int]  # their positions
    front: Hashable = ()  # what comes first, such as the prefix: equal where it is the same
    turn: Sequence[int] = ()  # tokens between that and the row, which no cut has changed
    turn_at: int = 0  # the position of the first of them
    cut: Collection[int] = ()  # positions that no later token outside them sees


def distinct_tokens(rows: Iterable[Stretch]) -> np.ndarray | None:
    """The number of each packed token's states [token]; None where all tokens are distinct."""
    known = _Known()
    numbers = np.array([number for row in rows for number in _numbers(row, known)], dtype=np.int64)
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    if len(first) == len(numbers):
        return None
    # In the order in which they come first, so that a pack stands as its rows do.
    return np.argsort(np.argsort(first))[inverse]


class _Known:
    """A number for everything that was asked about, the same when it comes again."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, *of: Hashable) -> int:
        return self._numbers.setdefault(of, len(self._numbers))


def _numbers(row: Stretch, known: _Known) -> list[int]:
    """The number of each token of a row.

    `whole` stands for all tokens before the next one, `open` for those that are not cut: a token
    inside the cut sees the former, any other the latter.
    """
    whole = open = known.number(row.front)
    for position, token in enumerate(row.turn, start=row.turn_at):
        before, whole = whole, known.number(whole, position, token)
        if position not in row.cut:
            open = whole if open == before else known.number(open, whole)
    numbers = []
    for position, token in zip(row.at, row.ids, strict=True):
        inside = position in row.cut
        own = known.number(whole if inside else open, position, token)
        whole = own if inside or whole == open else known.number(whole, own)
        open = open if inside else own
        numbers.append(own)
    return numbers
