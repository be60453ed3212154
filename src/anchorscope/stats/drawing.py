"""What a bootstrap draws: entities, which are questions where each has one of its own.

Questions about one entity are not independent of one another, so whole entities are drawn with
replacement. `entity` ([question], any labels) says which questions these are; without it, or where
no two questions share an entity, questions are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np

from anchorscope.stats.kept import kept, may_keep

_BLOCK = 4_000_000  # numbers drawn at a time, so that memory stays flat for large n
_COLUMNS = 64  # resamples that are multiplied at a time, at least, where not all are at once


def count_blocks(
    n: int, *, seed: int, resamples: int, entity: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """How often each of n questions is drawn, [question, some resamples]; small whole numbers."""
    number = shared_entities(entity, n)
    size = n if number is None else int(number.max()) + 1
    for times in uniform_blocks(size, seed=seed, resamples=resamples):
        yield times if number is None else times[number]


def drawn_sums(
    columns: np.ndarray, *, seed: int, resamples: int, entity: np.ndarray | None = None
) -> np.ndarray:
    """The sum of each column [question, column] over the questions drawn, [resample, column].

    An entity's questions are added up first: one matrix product over the entities.
    """
    number, resampled = shared_entities(entity, len(columns)), []
    if number is not None:
        columns = np.stack([np.bincount(number, weights=of) for of in columns.T], axis=1)
    for times in uniform_blocks(len(columns), seed=seed, resamples=resamples):
        resampled.append(times.astype(np.float64).T @ columns)
    return np.concatenate(resampled)


def drawn_totals(*values: np.ndarray, seed: int, resamples: int) -> list[np.ndarray]:
    """The sum of each list of values [n] over those drawn, [resample]: `of @ uniform_counts(...)`.

    Where these are many they are multiplied `_COLUMNS` resamples at a time. No part is narrower:
    a library may add up a single column, or the last few, in another order.
    """
    n = len(values[0])
    if may_keep(n * resamples):
        times = uniform_counts(n, seed=seed, resamples=resamples).astype(np.float64)
        return [of @ times for of in values]
    drawn, totals = uniform_blocks(n, seed=seed, resamples=resamples), []
    held = next(drawn)
    for size in _widths(resamples):
        while held.shape[1] < size:
            held = np.concatenate([held, next(drawn)], axis=1)
        times = held[:, :size].astype(np.float64)
        totals.append([of @ times for of in values])
        held = held[:, size:]
    return [np.concatenate(of) for of in zip(*totals, strict=True)]


def _widths(resamples: int) -> list[int]:
    """The resamples in parts of `_COLUMNS`, what is left over in the last of them."""
    parts = max(1, resamples // _COLUMNS)
    return [_COLUMNS] * (parts - 1) + [resamples - _COLUMNS * (parts - 1)]


def uniform_counts(n: int, *, seed: int, resamples: int) -> np.ndarray:
    """How often each of n is drawn with replacement, [n, resample].

    Rows are drawn and counted: four times as fast as a draw of the counts (`rng.multinomial`).
    """

    def draw() -> np.ndarray:
        rng = np.random.default_rng(seed)
        parts = (counts_of_rows(rng, n, size) for size in blocks(resamples, n))
        return side_by_side(n, parts, resamples)

    return kept(("uniform", n, seed, resamples), draw)


def uniform_blocks(n: int, *, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """The columns of `uniform_counts`, some at a time; what is too large to keep is never whole."""
    if may_keep(n * resamples):
        times, at = uniform_counts(n, seed=seed, resamples=resamples), 0
        for size in blocks(resamples, n):
            yield times[:, at : at + size]
            at += size
        return
    rng = np.random.default_rng(seed)
    for size in blocks(resamples, n):
        yield counts_of_rows(rng, n, size)


def side_by_side(n: int, parts: Iterable[np.ndarray], resamples: int) -> np.ndarray:
    """Counts [n, some resamples] in one array, each put into its place as it comes.

    `np.concatenate` would hold all of them twice.
    """
    counts, at = np.empty((n, resamples), dtype=np.uint8), 0
    for part in parts:
        if part.dtype != counts.dtype:  # one that does not fit a byte
            counts = counts.astype(np.int64)
        counts[:, at : at + part.shape[1]] = part
        at += part.shape[1]
    return counts


def counts_of_rows(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    """How often each of n is drawn in n draws, [n, resample], for `size` resamples."""
    # Resample by resample: counters of all at once would not fit a processor's cache.
    rows = resampled_rows(rng, n, size)
    counts = np.empty((size, n), dtype=np.int32)
    for resample, drawn in enumerate(rows):
        counts[resample] = np.bincount(drawn, minlength=n)
    return np.ascontiguousarray(_small(counts).T)  # bytes are turned round in a third of the time


def _small(counts: np.ndarray) -> np.ndarray:
    """Counts in a byte each where they fit one, as they all but always do."""
    fits = counts.size == 0 or counts.max() < 256
    return counts.astype(np.uint8 if fits else np.int64)


def shared_entities(entity: np.ndarray | None, n: int) -> np.ndarray | None:
    """The number of each question's entity, [question] from 0, in the order of the labels.

    None where no two questions share one: then questions and entities are the same thing.
    """
    if entity is None:
        return None
    if len(entity) != n:
        raise ValueError(f"{len(entity)} entities for {n} questions")
    labels = np.ascontiguousarray(entity)
    if labels.dtype.hasobject:  # whose bytes are not what they say
        return _numbered(labels)
    return _numbered_bytes(labels.tobytes(), labels.dtype)


@lru_cache(maxsize=16)
def _numbered_bytes(labels: bytes, dtype: np.dtype) -> np.ndarray | None:
    """The same labels come for every probe and pass: to know them again takes a tenth of a sort."""
    number = _numbered(np.frombuffer(labels, dtype))
    if number is not None:
        number.setflags(write=False)
    return number


def _numbered(labels: np.ndarray) -> np.ndarray | None:
    values, number = np.unique(labels, return_inverse=True)
    return None if len(values) == len(labels) else number


def blocks(resamples: int, n: int) -> list[int]:
    """The resamples in parts, each small enough for memory to stay flat."""
    size = max(1, _BLOCK // n)
    full, rest = divmod(resamples, size)
    return [size] * full + [rest] * (rest > 0)


def resampled_rows(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    """Rows drawn with replacement, [resample, n]."""
    return rng.integers(n, size=(size, n))


def design_effect(hits: np.ndarray, number: np.ndarray | None) -> float:
    """How many times the variance of a share grows because entities have several questions.

    Never below 1: fewer entities than questions are no gain in certainty. Where all hits are
    alike the data cannot say, and each entity counts as one answer (Kish's effect).
    """
    if number is None:
        return 1.0
    n, share, size = len(hits), hits.mean(), np.bincount(number)
    if share in (0.0, 1.0) or len(size) == 1:
        return float(np.sum(size**2) / n)
    apart = np.bincount(number, weights=hits) - share * size
    variance = len(size) / (len(size) - 1) * np.sum(apart**2) / n**2
    return float(max(1.0, variance / (share * (1 - share) / n)))


def entities_in(member: np.ndarray, number: np.ndarray) -> np.ndarray:
    """How many entities have a member, [column]."""
    order = np.argsort(number, kind="stable")
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    return np.logical_or.reduceat(member[order], starts, axis=0).sum(axis=0)


def effective_size(values: np.ndarray, entity: np.ndarray | None) -> float:
    """How many independent samples n values amount to, from their correlation within entities."""
    n, number = len(values), shared_entities(entity, len(values))
    if number is None or n < 3:
        return float(n)
    size = np.bincount(number)
    k, means = len(size), np.bincount(number, weights=values) / size
    within = np.sum((values - means[number]) ** 2) / max(n - k, 1)
    if k < 2:
        return 1.0
    between = np.sum(size * (means - values.mean()) ** 2) / (k - 1)
    typical = (n - np.sum(size**2) / n) / (k - 1)
    whole = between + (typical - 1) * within
    alike = max(0.0, (between - within) / whole) if whole > 0 else 0.0
    return float(n / (1 + (np.sum(size**2) / n - 1) * alike))
