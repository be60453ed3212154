"""What a bootstrap draws: entities, which are questions where each has one of its own.

Questions about one entity are not independent of one another, so whole entities are drawn with
replacement. `entity` ([question], any labels) says which questions these are; without it, or where
no two questions share an entity, questions are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_BLOCK = 4_000_000  # numbers drawn at a time, so that memory stays flat for large n
_COUNTS_BLOCK = 2_000_000


def resample_counts(
    n: int, *, seed: int, resamples: int, entity: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """How often each of n questions is drawn, [resample, question], a block at a time."""
    rng, size = np.random.default_rng(seed), max(1, _COUNTS_BLOCK // max(n, 1))
    number = shared_entities(entity, n)
    drawn = n if number is None else int(number.max()) + 1
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        if n == 0:
            yield np.zeros((count, 0))
        else:
            times = rng.multinomial(drawn, np.full(drawn, 1 / drawn), size=count)
            yield (times if number is None else times[:, number]).astype(np.float64)


def shared_entities(entity: np.ndarray | None, n: int) -> np.ndarray | None:
    """The number of each question's entity, [question] from 0, in the order of the labels.

    None where no two questions share one: then questions and entities are the same thing.
    """
    if entity is None:
        return None
    if len(entity) != n:
        raise ValueError(f"{len(entity)} entities for {n} questions")
    labels, number = np.unique(np.asarray(entity), return_inverse=True)
    return None if len(labels) == n else number


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
