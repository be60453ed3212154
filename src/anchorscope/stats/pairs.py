"""AUROC in many resamples at once: how many pairs of a wrong and a right answer are in order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anchorscope.stats.drawing import blocks, counts_of_rows, side_by_side
from anchorscope.stats.kept import kept, may_keep

_BLOCK = 250  # resamples at a time
_LOOKED_UP = 4_000_000  # answers times resamples at a time, so that memory stays flat


def counts_of_classes(right: int, wrong: int, *, seed: int, resamples: int) -> np.ndarray:
    """How often each right and then each wrong answer is drawn, [right + wrong, resample]."""

    def draw() -> np.ndarray:
        rng = np.random.default_rng(seed)
        parts = (
            np.concatenate([counts_of_rows(rng, n, size) for n in (right, wrong)])
            for size in blocks(resamples, right + wrong)
        )
        return side_by_side(right + wrong, parts, resamples)

    return kept(("classes", right, wrong, seed, resamples), draw)


def class_blocks(
    right: int, wrong: int, *, seed: int, resamples: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same by class, right and wrong, some resamples at a time where they are too many."""
    if may_keep((right + wrong) * resamples):
        times = counts_of_classes(right, wrong, seed=seed, resamples=resamples)
        yield times[:right], times[right:]
        return
    rng = np.random.default_rng(seed)
    for size in blocks(resamples, right + wrong):
        yield counts_of_rows(rng, right, size), counts_of_rows(rng, wrong, size)


def counts_by_class(
    wrong: int, right: int, *, seed: int, resamples: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """How often each wrong and each right answer is drawn, [answer, resample] each, in parts."""
    rng = np.random.default_rng(seed)
    for done in range(0, resamples, _BLOCK):
        size = min(_BLOCK, resamples - done)
        yield counts_of_rows(rng, wrong, size), counts_of_rows(rng, right, size)


def placed(
    wrong: np.ndarray, right: np.ndarray, of_wrong: np.ndarray, of_right: np.ndarray
) -> np.ndarray:
    """How many pairs each resample puts the right way round, ties half, [resample].

    `right` scores are sorted; counts are [wrong, resample] and [right, resample]. Counts added up
    turn "how many right answers lie below" into a look-up.
    """
    below = np.searchsorted(right, wrong, "left")  # right answers below each wrong one
    upto = np.searchsorted(right, wrong, "right")
    total = np.zeros(of_wrong.shape[1])
    size = max(1, min(_BLOCK, _LOOKED_UP // max(len(wrong), len(right) + 1)))
    for start in range(0, len(total), size):
        part = slice(start, start + size)
        ranks = np.zeros((len(right) + 1, len(total[part])), dtype=np.int32)  # whole numbers: exact
        np.cumsum(of_right[:, part], axis=0, out=ranks[1:])
        lower = ranks[below]
        if (below != upto).any():
            lower = (lower + ranks[upto]) / 2
        total[part] = np.einsum("wr,wr->r", lower, of_wrong[:, part], dtype=np.float64)
    return total


def weighted(
    score: np.ndarray,
    wrong: np.ndarray,
    right: np.ndarray,
    of_wrong: np.ndarray,
    of_right: np.ndarray,
) -> np.ndarray:
    """AUROC of each resample, [resample]; NaN where it leaves one class alone.

    `wrong` and `right` are places in `score`; counts are [wrong, resample], [right, resample].
    """
    order = np.argsort(score[right], kind="stable")
    total = placed(score[wrong], score[right][order], of_wrong, of_right[order])
    of_each = [of.sum(axis=0, dtype=np.int32) for of in (of_wrong, of_right)]
    pairs = of_each[0] * of_each[1].astype(np.float64)
    return np.divide(total, pairs, out=np.full(len(total), np.nan), where=pairs > 0)
