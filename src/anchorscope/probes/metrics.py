"""Numbers with intervals. One sign convention: a higher score means more likely wrong (z = 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.metrics import roc_auc_score

from anchorscope.errors import UserError
from anchorscope.records import Estimate

LEVEL = 0.95
_Z95 = 1.959963984540054  # the normal quantile that belongs to LEVEL
_BLOCK = 4_000_000  # numbers drawn at a time, so that memory stays flat for large n


def auroc(z: np.ndarray, score: np.ndarray) -> float:
    """The chance that a wrong answer scores above a right one, ties half; NaN for one class."""
    z, score = _labels_and_scores(z, score)
    return float(roc_auc_score(z, score)) if len(np.unique(z)) == 2 else np.nan


def auroc_interval(
    z: np.ndarray, score: np.ndarray, *, seed: int, resamples: int = 1000
) -> Estimate:
    """AUROC with its bootstrap interval; questions are drawn within each class."""
    z, score = _labels_and_scores(z, score)
    value, n = auroc(z, score), len(z)
    if np.isnan(value):
        return Estimate(np.nan, np.nan, np.nan, n)
    rng = np.random.default_rng(seed)
    # Sorted, so that the order of the questions has no say in what is drawn.
    wrong, right = np.sort(score[z == 1]), np.sort(score[z == 0])
    below = np.searchsorted(right, wrong, "left")  # right answers below each wrong one
    upto = np.searchsorted(right, wrong, "right")
    draws = []
    for size in _blocks(resamples, n):
        # How often each right answer was drawn, added up: a resample of the right answers
        # turns "how many lie below" into a look-up.
        times = _counts(rng, len(right), size)
        ranks = np.concatenate([np.zeros((size, 1)), np.cumsum(times, axis=1)], axis=1)
        placed = (ranks[:, below] + ranks[:, upto]) / 2  # [resample, wrong]
        draws.append((placed * _counts(rng, len(wrong), size)).sum(axis=1))
    return _percentiles(value, np.concatenate(draws) / (len(wrong) * len(right)), n)


def accuracy(z: np.ndarray, logit: np.ndarray) -> float:
    """The share of questions whose class the logit's sign gives; NaN for no questions."""
    z, logit = _labels_and_scores(z, logit)
    return float(np.mean((logit > 0) == (z == 1))) if len(z) else np.nan


def bootstrap_mean(values: np.ndarray, *, seed: int, resamples: int = 1000) -> Estimate:
    """The mean over questions with its bootstrap interval; no interval for fewer than two."""
    values = np.sort(np.asarray(values, dtype=np.float64))  # the order has no say
    n = len(values)
    if n == 0 or np.isnan(values).any():
        return Estimate(np.nan, np.nan, np.nan, n)
    if n == 1:
        return Estimate(float(values[0]), np.nan, np.nan, n)
    rng = np.random.default_rng(seed)
    means = [values[_draw(rng, n, size)].mean(axis=1) for size in _blocks(resamples, n)]
    return _percentiles(float(values.mean()), np.concatenate(means), n)


def rate(hits: np.ndarray) -> Estimate:
    """The share of hits with its Wilson interval; NaN for no questions.

    A bootstrap would give 0 of 300 an interval of no width; Wilson's says "up to 1.3 %".
    """
    hits = np.asarray(hits, dtype=np.float64)
    n = len(hits)
    if n == 0 or np.isnan(hits).any():
        return Estimate(np.nan, np.nan, np.nan, n)
    share = float(hits.mean())
    middle = (share + _Z95**2 / (2 * n)) / (1 + _Z95**2 / n)
    reach = _Z95 / (1 + _Z95**2 / n) * np.sqrt(share * (1 - share) / n + _Z95**2 / (4 * n**2))
    # The clips only undo rounding: an interval always holds its own share.
    low, high = min(max(middle - reach, 0.0), share), max(min(middle + reach, 1.0), share)
    return Estimate(share, float(low), float(high), n)


def holm(p: Sequence[float]) -> np.ndarray:
    """Holm's corrected p-values in the order given; NaN stays NaN and does not count."""
    values = np.asarray(p, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.argsort(values[known], kind="stable")]
    out = np.full(len(values), np.nan)
    steps = values[order] * np.arange(len(order), 0, -1)
    out[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return out


def _labels_and_scores(z: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z, score = np.asarray(z), np.asarray(score, dtype=np.float64)
    if z.shape != score.shape or z.ndim != 1:
        raise UserError(f"Labels {z.shape} and scores {score.shape} must be two equal lists.")
    if np.isnan(score).any():
        raise UserError(
            f"{np.isnan(score).sum()} of {len(score)} scores are NaN. Leave these questions out."
        )
    return z, score


def _percentiles(value: float, draws: np.ndarray, n: int) -> Estimate:
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high), n)


def _blocks(resamples: int, n: int) -> list[int]:
    size = max(1, _BLOCK // n)
    full, rest = divmod(resamples, size)
    return [size] * full + [rest] * (rest > 0)


def _draw(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    return rng.integers(n, size=(size, n))


def _counts(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    """How often each of n is drawn in n draws, [resample, n], for `size` resamples."""
    flat = _draw(rng, n, size) + (np.arange(size) * n)[:, None]
    return np.bincount(flat.ravel(), minlength=size * n).reshape(size, n)
