"""Tests E1 to E3: the knockout's effect, its share of the question's, and its repeatability.

E1 and E2 compare the knockout with the neutral control and with the whole question. E3 asks whether
the residuals of the one law are a sample's own. Two probes agree even on a random outcome, because
both read the same state. So agreement counts beyond what two probes agree on under a displacement
of the same length in a random direction, and it must repeat in a retest: the same question and
answer read again after other worked examples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from anchorscope.config import Delta
from anchorscope.pathways.band import SIDES, Band
from anchorscope.pathways.effects import delta_p, flips
from anchorscope.records import Estimate
from anchorscope.stats.drawing import drawn_sums
from anchorscope.stats.intervals import (
    ALPHA,
    NOTHING,
    Draws,
    Z,
    bootstrap_mean,
    p_of_interval,
    percentile_interval,
)
from anchorscope.stats.ranking import correlation_with_draws

_SURE = 0.975  # share of the draws in which the whole question must have an effect
_TESTS = 3  # logits within each ŷ, and flips, share the 5 %
RETESTED = 60  # fewest samples read again for a retest
_FAR = 3.0  # standardised residuals are cut here: a heavy tail may not decide a correlation
_MOST = 1 - 1e-9  # correlations beyond this have no finite Fisher z


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of a pass less that of the neutral control, both signed towards ŷ."""

    points: Estimate = NOTHING  # ΔP
    logit: Estimate = NOTHING
    logit_right: Estimate = NOTHING  # among the samples predicted right
    logit_wrong: Estimate = NOTHING
    flips: Estimate = NOTHING  # share of predictions that change
    p: float = np.nan  # of no loss within either ŷ and no more flips, corrected for the three tests

    @property
    def shown(self) -> bool:
        return bool(self.p <= ALPHA)

    @property
    def takes_belief(self) -> bool:
        """Whether either predicted class loses belief: noise alone flips, but takes no belief."""
        return bool(self.logit_right.high < 0 or self.logit_wrong.high < 0)


def effect(band: Band, intervention: str, draws: Draws, *, unit: Delta = "points") -> Effect:
    """The effect of a pass minus that of the neutral control, where there is one.

    The control's own effect is its change of the clean reading.
    """
    if not band.has(intervention):
        return Effect()
    controlled = intervention != "neutral" and band.has("neutral")
    control = "neutral" if controlled else "clean"
    band = band.take(band.rows(intervention, control))

    def beyond_control(probe: str) -> tuple[np.ndarray, ...]:
        clean, cut, base = (band.side(probe, name) for name in ("clean", intervention, control))
        return (
            delta_p(clean, cut, delta=unit) - delta_p(clean, base, delta=unit),
            band.towards * (cut - base),
            flips(clean, cut) - flips(clean, base),
        )

    def mean(values: np.ndarray, rows: np.ndarray) -> Estimate:
        own = band.entity[rows]
        return bootstrap_mean(values[rows], seed=draws.seed, resamples=draws.resamples, entity=own)

    points, logit, flipped = np.mean([beyond_control(probe) for probe in SIDES], axis=0)
    everyone = np.ones(band.n, dtype=bool)
    right, wrong = mean(logit, ~band.wrong), mean(logit, band.wrong)
    more = mean(flipped, everyone)
    p = [_below_zero(right), _below_zero(wrong), _above_zero(more)]
    tested = [value for value in p if np.isfinite(value)]
    return Effect(
        points=mean(points, everyone),
        logit=mean(logit, everyone),
        logit_right=right,
        logit_wrong=wrong,
        flips=more,
        p=min(1.0, _TESTS * min(tested)) if tested else np.nan,
    )


def _below_zero(mean: Estimate) -> float:
    """The one-sided p of a mean that is not below zero, from its interval."""
    two_sided = p_of_interval(mean)
    return two_sided / 2 if mean.value < 0 else 1 - two_sided / 2


def _above_zero(mean: Estimate) -> float:
    reach = (mean.high - mean.low) / (2 * Z)
    return float(ndtr(-mean.value / reach)) if reach > 0 else np.nan


def share_of_question(band: Band, intervention: str, draws: Draws) -> Estimate:
    """The effect of a pass on the logits, as a share of the whole question's effect."""
    if not band.has(intervention, "question"):
        return NOTHING
    control = "neutral" if band.has("neutral") else "clean"
    band = band.take(band.rows(intervention, "question", control))
    moved = [band.both(name) - band.both(control) for name in (intervention, "question")]
    parts = band.towards[:, None] * np.column_stack(moved)
    drawn = drawn_sums(parts, seed=draws.seed, resamples=draws.resamples, entity=band.entity)
    part, whole = parts.sum(axis=0)
    if not (whole < 0 and (drawn[:, 1] < 0).mean() >= _SURE):  # a share of no effect has no meaning
        return Estimate(np.nan, np.nan, np.nan, band.n)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(drawn[:, 1] < 0, drawn[:, 0] / drawn[:, 1], np.nan)
    return percentile_interval(float(part / whole), ratios, band.n)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The correlation of two lists of residuals, and what it is compared with."""

    value: Estimate = NOTHING
    null: float = np.nan
    p: float = np.nan  # one-sided; NaN where it was not tested

    @property
    def shown(self) -> bool:
        return bool(self.p <= ALPHA)

    @property
    def tested(self) -> bool:
        return bool(np.isfinite(self.p))


def between_sides(band: Band, draws: Draws) -> Agreement:
    """Correlation of the residuals of sides a and b, beyond that of random displacements."""
    a, b = (residual(band, band.side(p), band.side(p, "knockout")) for p in SIDES)
    return _agreement(a, b, band.overlap if np.isfinite(band.overlap) else 0.0, band, draws)


def under_retest(band: Band, draws: Draws) -> Agreement:
    """Correlation of the residuals with those of a retest after other worked examples."""
    again = retest_rows(band)
    if again is None:
        return Agreement()
    band = band.take(again)
    first = residual(band, band.both(), band.both("knockout"))
    second = residual(band, band.both("retest"), band.both("retest-knockout"))
    return _agreement(first, second, 0.0, band, draws)


def retest_rows(band: Band) -> np.ndarray | None:
    """The samples that were read again, [question] bool; None where they are too few."""
    if not band.has("retest", "retest-knockout"):
        return None
    rows = band.rows("retest", "retest-knockout")
    return rows if rows.sum() >= RETESTED else None


def residual(band: Band, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Residuals of `after` under the curved law, in units of its noise, clipped, [question]."""
    fit = band.law(before, after, law="curve")
    return np.clip(fit.residual / np.where(fit.noise > 0, fit.noise, 1.0), -_FAR, _FAR)


def _agreement(
    one: np.ndarray, other: np.ndarray, null: float, band: Band, draws: Draws
) -> Agreement:
    value, drawn = correlation_with_draws(one, other, draws, entity=band.entity)
    error = np.nanstd(_fisher(drawn))
    p = float(ndtr((_fisher(null) - _fisher(value)) / error)) if error > 0 else np.nan
    return Agreement(value=percentile_interval(value, drawn, band.n), null=null, p=p)


def _fisher(correlation: np.ndarray | float) -> np.ndarray:
    return np.arctanh(np.clip(correlation, -_MOST, _MOST))
