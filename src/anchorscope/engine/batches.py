"""Batches by tokens, not by count: like lengths together, since padding is computed too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def by_length(
    things: Iterable[T], length: Callable[[T], int], *, budget: int, then: Callable[[T], Any]
) -> Iterator[list[T]]:
    """Batches of at most `budget` padded tokens, sorted by length, then by `then`."""
    batch: list[T] = []
    for thing in sorted(things, key=lambda thing: (length(thing), then(thing))):
        if batch and length(thing) * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(thing)
    if batch:
        yield batch
