"""The strict gap, and an interval that includes the probes' own uncertainty.

The group comes from side a and the effect from side b. An interval that treats the probes as fixed
covers the gap of other questions in 87 %. So entities are drawn, in parts, for the samples *and*
for what the probes learn from. The printed gap is the mean over sets of folds: the same parts are
drawn for all of them, and it is their mean that varies. Other entities would also have chosen
other layers, which is one more uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorscope.config import Delta
from anchorscope.pathways.band import SIDES, Band, drawn_bands, read_band
from anchorscope.pathways.effects import delta_p
from anchorscope.pathways.fold_layers import FoldBand
from anchorscope.probes.labelled import Covariates
from anchorscope.probes.readings import Readings
from anchorscope.records import Estimate
from anchorscope.stats.intervals import Z

DRAWS = 200


def strict_gap(band: Band, *, unit: Delta = "points") -> float:
    """Mean ΔP (side b) of samples that side a flips less that of the others; NaN for one group."""
    a, b = ((band.side(p), band.side(p, "knockout")) for p in SIDES)
    return _gap(a, b, np.ones(band.n), unit)


def same_gap(band: Band, *, unit: Delta = "points") -> float:
    """The gap with group and effect from side b alone; it differs from strict by circularity."""
    side = (band.side("b"), band.side("b", "knockout"))
    return _gap(side, side, np.ones(band.n), unit)


def redrawn_gaps(folds: FoldBand, *, seed: int, unit: Delta = "points") -> np.ndarray:
    """The gap of entities drawn with replacement and probes that learnt from these, [draw].

    The same parts of the entities are drawn for every set of folds.
    """
    band, count = folds.band, folds.moved.shape[-1]
    times = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    gaps = []
    for drawn in times:
        a, b = (
            tuple(
                band.side(side, name) + moved @ (1 - drawn)
                for name, moved in zip(("clean", "knockout"), moves, strict=True)
            )
            for side, moves in zip(SIDES, folds.moved, strict=True)
        )
        gaps.append(_gap(a, b, drawn[folds.part].astype(float), unit))
    return np.array(gaps)


def variance_between_bands(
    readings: Readings, *, covariates: Covariates, seed: int, unit: Delta = "points"
) -> float:
    """How much the gap varies over the bands that draws of the entities choose."""
    chosen = drawn_bands(readings, seed=seed)
    bands = [read_band(readings, layers, covariates=covariates) for layers in chosen]
    gaps = np.array([strict_gap(band, unit=unit) for band in bands])
    finite, share = np.isfinite(gaps), np.array([*chosen.values()])
    return float(np.cov(gaps[finite], aweights=share[finite], ddof=0)) if finite.any() else 0.0


def gap_with_interval(
    gaps: Sequence[float], redrawn: Sequence[np.ndarray], *, between_bands: float = 0.0
) -> Estimate:
    """The mean gap over sets of folds and its 95 % interval, from `redrawn` [draw] of each set.

    No interval where most draws leave a group empty.
    """
    finite = np.isfinite(gaps)
    if not finite.any():
        return Estimate(np.nan, np.nan, np.nan, 0)
    value = float(np.mean(np.array(gaps)[finite]))
    means = np.mean([drawn for drawn, has in zip(redrawn, finite, strict=True) if has], axis=0)
    drawn = means[np.isfinite(means)]
    if len(drawn) < max(2, len(means) / 2):
        return Estimate(value, np.nan, np.nan, 0)
    reach = Z * float(np.sqrt(drawn.var(ddof=1) + between_bands))
    return Estimate(value, value - reach, value + reach, 0)


def _gap(
    a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...], weight: np.ndarray, unit: Delta
) -> float:
    """The gap from clean and knocked-out logits of both sides, each sample counted `weight` times.

    All are [question]; NaN where a group is empty.
    """
    flipped = (a[0] > 0) != (a[1] > 0)
    effect = delta_p(b[0], b[1], delta=unit)
    in_q, in_a = weight * flipped, weight * ~flipped
    if not (in_q.any() and in_a.any()):
        return np.nan
    return float(in_q @ effect / in_q.sum() - in_a @ effect / in_a.sum())
