"""Bootstrap draws of entities with replacement, as counts of how often each is drawn.

Questions about one entity are not independent of one another, so whole entities are drawn.
`entity` ([question], any labels) says which questions these are; without it, or where no two
questions share an entity, questions are drawn. A draw is how often each is drawn: sums over many
resamples are then one matrix product.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_BLOCK = 4_000_000  # numbers drawn at a time, so that memory stays flat for large n


def count_blocks(
    n: int, *, seed: int, resamples: int, entity: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """How often each of n questions is drawn, [question, some resamples]; small whole numbers."""
    number = shared_entities(entity, n)
    size = n if number is None else int(number.max()) + 1
    for times in class_blocks(size, seed=seed, resamples=resamples):
        yield times if number is None else times[number]


def drawn_sums(
    columns: np.ndarray, *, seed: int, resamples: int, entity: np.ndarray | None = None
) -> np.ndarray:
    """The sum of each column [question, column] over the questions drawn, [resample, column].

    An entity's questions are added up first: one matrix product over the entities.
    """
    number = shared_entities(entity, len(columns))
    if number is not None:
        columns = np.stack([np.bincount(number, weights=column) for column in columns.T], axis=1)
    drawn = class_blocks(len(columns), seed=seed, resamples=resamples)
    return np.concatenate([times.astype(np.float64).T @ columns for times in drawn])


def class_blocks(
    *sizes: int, seed: int, resamples: int, block: int | None = None
) -> Iterator[np.ndarray]:
    """Draw answers within each class: how often each is drawn, [answer, some resamples].

    Answers are in the order of their classes. As many of each class are drawn as it has (`sizes`),
    `block` resamples at a time.
    """
    block = block or max(1, _BLOCK // sum(sizes))
    rng = np.random.default_rng(seed)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        yield np.concatenate([counts_of_rows(rng, n, size) for n in sizes])


def counts_of_rows(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    """How often each of n is drawn in n draws, [n, resample], for `size` resamples.

    Rows are drawn and counted: four times as fast as a draw of the counts (`rng.multinomial`).
    """
    counts = np.empty((size, n), dtype=np.int32)
    for resample, drawn in enumerate(rng.integers(n, size=(size, n))):
        counts[resample] = np.bincount(drawn, minlength=n)
    return np.ascontiguousarray(counts.T)


def shared_entities(entity: np.ndarray | None, n: int) -> np.ndarray | None:
    """Number each question's entity from 0 in the order of the labels, [question].

    None where no two questions share an entity: drawing questions is then drawing entities.
    """
    if entity is None:
        return None
    if len(entity) != n:
        raise ValueError(f"{len(entity)} entities for {n} questions")
    labels = np.asarray(entity)
    if labels.dtype.hasobject:
        labels = labels.astype(str)
    values, number = np.unique(labels, return_inverse=True)
    return None if len(values) == len(number) else number


def design_effect(hits: np.ndarray, number: np.ndarray | None) -> float:
    """How many times the variance of a share grows because entities have several questions.

    Never below 1: fewer entities than questions are no gain in certainty. Where all hits are
    equal the data cannot tell, and each entity counts as one answer (Kish's effect).
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
    """The effective number of independent samples, from the correlation within entities."""
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
