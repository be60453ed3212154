"""How good a detector is: sorting, probability, and what may be answered at a given risk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sklearn.metrics import average_precision_score

from anchorscope.errors import UserError
from anchorscope.probes.metrics import LEVEL
from anchorscope.records import Estimate

_BLOCK = 250  # resamples at a time, so that memory stays flat
BINS = 10  # of equal width, for ECE and the reliability diagram


class Curve(NamedTuple):
    """A curve by its points."""

    x: np.ndarray
    y: np.ndarray


class Difference(NamedTuple):
    """How much higher one AUROC is than another, with interval and two-sided p."""

    value: float
    low: float
    high: float
    p: float


def auprc(z: np.ndarray, score: np.ndarray) -> float:
    """Average precision for wrong answers; NaN where there is one class alone."""
    return float(average_precision_score(z, score)) if len(np.unique(z)) == 2 else np.nan


def brier(z: np.ndarray, probability: np.ndarray) -> float:
    """The mean squared distance of the probability of z = 1 from z; NaN for no answers."""
    return float(np.mean((probability - z) ** 2)) if len(z) else np.nan


def ece(z: np.ndarray, probability: np.ndarray) -> float:
    """Expected calibration error over BINS bins of equal width; NaN for no answers."""
    if not len(z):
        return np.nan
    said, true, count = reliability(z, probability)
    return float(np.sum(count * np.abs(said - true)) / len(z))


def reliability(
    z: np.ndarray, probability: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean probability, share of wrong answers and count of each bin that has answers, [bin]."""
    where = np.minimum((probability * BINS).astype(int), BINS - 1)
    count = np.bincount(where, minlength=BINS)
    used = count > 0
    said = np.bincount(where, weights=probability, minlength=BINS)[used] / count[used]
    true = np.bincount(where, weights=z, minlength=BINS)[used] / count[used]
    return said, true, count[used]


def risk_coverage(z: np.ndarray, score: np.ndarray) -> Curve:
    """Coverage (share answered) and risk (share of wrong ones among them), most trusted first.

    Answers of equal score are let through together: nothing tells one from the other.
    """
    order = np.argsort(score, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(score[order]) > 0, True)) + 1
    return Curve(ends / len(z), np.cumsum(z[order])[ends - 1] / ends)


def coverage_at(z: np.ndarray, score: np.ndarray, risk: float) -> float:
    """The largest share that can be answered with at most this share of wrong ones; 0 if none."""
    if not len(z):
        return np.nan
    curve = risk_coverage(z, score)
    within = curve.y <= risk
    return float(curve.x[within].max()) if within.any() else 0.0


def auroc_draws(
    z: np.ndarray, scores: Sequence[np.ndarray], *, seed: int, resamples: int
) -> np.ndarray:
    """AUROC of each score on the same resamples of the questions, [score, resample].

    Questions are drawn within each class, as for a single interval.
    """
    z = np.asarray(z)
    wrong, right = np.flatnonzero(z == 1), np.flatnonzero(z == 0)
    if not (len(wrong) and len(right)):
        return np.full((len(scores), resamples), np.nan)
    rng = np.random.default_rng(seed)
    draws = []
    for done in range(0, resamples, _BLOCK):
        size = min(_BLOCK, resamples - done)
        of_wrong, of_right = (
            rng.multinomial(len(of), np.full(len(of), 1 / len(of)), size) for of in (wrong, right)
        )
        draws.append(np.stack([_weighted(s, wrong, right, of_wrong, of_right) for s in scores]))
    return np.concatenate(draws, axis=1)


def difference(a: float, b: float, draws: np.ndarray) -> Difference:
    """AUROC a less b, with the interval and p of paired draws of the difference, [resample]."""
    if np.isnan(draws).any():
        return Difference(np.nan, np.nan, np.nan, np.nan)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    # One is added because what was observed is itself one possible draw: p is never 0.
    below, above = np.sum(draws <= 0) + 1, np.sum(draws >= 0) + 1
    p = min(1.0, 2 * min(below, above) / (len(draws) + 1))
    return Difference(a - b, float(low), float(high), float(p))


def interval(value: float, draws: np.ndarray, n: int) -> Estimate:
    """A value with the 95 % interval of its draws."""
    if np.isnan(draws).any():
        return Estimate(np.nan, np.nan, np.nan, n)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high), n)


def check_scores(name: str, score: np.ndarray) -> None:
    """Raise a UserError where a detector gave no number for some answer."""
    if not np.isfinite(score).all():
        raise UserError(
            f"The detector '{name}' gave {int((~np.isfinite(score)).sum())} of {len(score)} "
            "answers no finite score. Leave it out, or collect the states again."
        )


def _weighted(
    score: np.ndarray,
    wrong: np.ndarray,
    right: np.ndarray,
    of_wrong: np.ndarray,
    of_right: np.ndarray,
) -> np.ndarray:
    """AUROC of each resample, whose counts are [resample, wrong] and [resample, right]."""
    order = np.argsort(score[right], kind="stable")
    sorted_right = score[right][order]
    below = np.searchsorted(sorted_right, score[wrong], "left")
    upto = np.searchsorted(sorted_right, score[wrong], "right")
    ranks = np.cumsum(of_right[:, order], axis=1)
    ranks = np.concatenate([np.zeros((len(ranks), 1)), ranks], axis=1)
    placed = (ranks[:, below] + ranks[:, upto]) / 2
    return (placed * of_wrong).sum(axis=1) / (len(wrong) * len(right))
