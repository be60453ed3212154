"""E3: is what the one law leaves over a sample's own, or a jolt that comes out otherwise next time?

Two probes agree on a coin toss, because both read the same state. So agreement counts beyond what
two probes agree on under a displacement of the same length in a random direction, and it must come
back in a retest: the same question and answer read again behind other worked examples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from anchorscope.pathways.band import Band
from anchorscope.records import Estimate
from anchorscope.stats.drawing import drawn_sums
from anchorscope.stats.intervals import ALPHA, Draws, percentile_interval

FEWEST = 60  # samples with a retest below which there is none
_FAR = 3.0  # standardised residuals are cut here: a heavy tail may not decide a correlation
_MOST = 0.999  # correlations beyond this have no finite Fisher z


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The correlation of two lists of residuals, and what it is held against."""

    value: Estimate
    null: float
    p: float  # one-sided; NaN where it was not tested

    @property
    def shown(self) -> bool:
        return bool(self.p <= ALPHA)

    @property
    def tested(self) -> bool:
        return bool(np.isfinite(self.p))


UNTESTED = Agreement(value=Estimate(np.nan, np.nan, np.nan, 0), null=np.nan, p=np.nan)


def between_sides(band: Band, draws: Draws) -> Agreement:
    """How far sides a and b agree on what is left, beyond a displacement in a random direction."""
    left = [residual(band, band.side(p), band.side(p, "knockout")) for p in ("a", "b")]
    null = band.overlap if np.isfinite(band.overlap) else 0.0
    return _agreement(left[0], left[1], null, band, draws)


def under_retest(band: Band, draws: Draws) -> Agreement:
    """How far what is left comes back behind other worked examples."""
    again = retest_rows(band)
    if again is None:
        return UNTESTED
    band = band.take(again)
    first = residual(band, band.both(), band.both("knockout"))
    second = residual(band, band.both("retest"), band.both("retest-knockout"))
    return _agreement(first, second, 0.0, band, draws)


def retest_rows(band: Band) -> np.ndarray | None:
    """The samples that were read again, [question] bool; None where they are too few."""
    if not (band.has("retest") and band.has("retest-knockout")):
        return None
    rows = band.rows("retest", "retest-knockout")
    return rows if rows.sum() >= FEWEST else None


def residual(band: Band, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """What one law with a bend leaves of `after` [question], in units of its own noise, cut."""
    fit = band.curved_law(before, after)
    return np.clip(fit.residual / np.where(fit.noise > 0, fit.noise, 1.0), -_FAR, _FAR)


def _agreement(
    one: np.ndarray, other: np.ndarray, null: float, band: Band, draws: Draws
) -> Agreement:
    terms = np.column_stack([np.ones_like(one), one, other, one * one, other * other, one * other])
    value = _correlation(terms.sum(axis=0)[None])[0]
    sums = drawn_sums(terms, seed=draws.seed, resamples=draws.resamples, entity=band.entity)
    drawn = _correlation(sums)
    error = np.nanstd(_fisher(drawn))
    p = float(ndtr((_fisher(null) - _fisher(value)) / error)) if error > 0 else np.nan
    return Agreement(value=percentile_interval(float(value), drawn, band.n), null=null, p=p)


def _fisher(correlation: np.ndarray | float) -> np.ndarray:
    return np.arctanh(np.clip(correlation, -_MOST, _MOST))


def _correlation(sums: np.ndarray) -> np.ndarray:
    """Pearson's correlation [draw] from the sums of its six terms; NaN without spread."""
    n, sx, sy, sxx, syy, sxy = sums.T
    with np.errstate(invalid="ignore", divide="ignore"):
        product = (sxx - sx * sx / n) * (syy - sy * sy / n)
        found = (sxy - sx * sy / n) / np.sqrt(np.maximum(product, 0))
    return np.where(product > 0, np.clip(found, -1, 1), np.nan)
