"""The strict gap, and an interval that includes the probes' own uncertainty.

The group comes from side a and the effect from side b. The printed gap is the mean over sets of
folds and over the bands that draws of the entities choose: a gap that depends on one choice between
layers of equal quality varies by more than its interval shows. An interval that treats the
probes as fixed covers the gap of other questions in 87 %. So entities are drawn, in parts, for the
samples, for what the probes learn from, and for the band, the same parts in all sets of folds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorscope.config import Delta
from anchorscope.pathways.band import SIDES, Band, drawn_bands, read_band
from anchorscope.pathways.effects import delta_p
from anchorscope.pathways.fold_layers import FoldBand, entity_parts
from anchorscope.probes.labelled import Labelled
from anchorscope.probes.readings import Readings
from anchorscope.records import Estimate
from anchorscope.stats.intervals import Z

DRAWS = 200


def whole_gap(
    sets: Sequence[FoldBand], readings: Readings, answers: Labelled, *, seed: int, unit: Delta
) -> Estimate:
    """The strict gap of a dataset; `readings` are those of all layers by the run's own folds."""
    part = entity_parts(answers.entities, seed=seed)
    times = drawn_parts(int(part.max()) + 1, seed=seed)
    gaps = [strict_gap(folds.band, unit=unit) for folds in sets]
    bands = drawn_bands(readings, part, times, seed=seed)
    by_band = {
        layers: strict_gap(read_band(readings, layers, covariates=answers.covariates), unit=unit)
        for layers in set(bands)
    }
    redrawn = [redrawn_gaps(folds, times, unit=unit) for folds in sets]
    moved = np.array([by_band[layers] for layers in bands]) - gaps[0]
    return gap_with_interval(gaps, redrawn, times, by_band=moved)


def strict_gap(band: Band, *, unit: Delta = "points") -> float:
    """Mean ΔP (side b) of samples that side a flips less that of the others; NaN for one group."""
    a, b = ((band.side(p), band.side(p, "knockout")) for p in SIDES)
    return gap_of(a, b, delta=unit)


def same_gap(band: Band, *, unit: Delta = "points") -> float:
    """The gap with group and effect from side b alone; it differs from strict by circularity."""
    side = (band.side("b"), band.side("b", "knockout"))
    return gap_of(side, side, delta=unit)


def drawn_parts(count: int, *, seed: int) -> np.ndarray:
    """How often each of `count` parts of the entities is in each draw, [draw, part]."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(count, np.full(count, 1 / count), size=DRAWS)


def redrawn_gaps(folds: FoldBand, times: np.ndarray, *, unit: Delta = "points") -> np.ndarray:
    """The gap in each draw of parts, by probes that learnt from the drawn parts, [draw]."""
    band, gaps = folds.band, []
    for drawn in times:
        a, b = (
            tuple(
                band.side(side, name) + moved @ (1 - drawn)
                for name, moved in zip(("clean", "knockout"), moves, strict=True)
            )
            for side, moves in zip(SIDES, folds.moved, strict=True)
        )
        gaps.append(gap_of(a, b, delta=unit, weight=drawn[folds.part].astype(float)))
    return np.array(gaps)


def gap_with_interval(
    gaps: Sequence[float], redrawn: Sequence[np.ndarray], times: np.ndarray, *, by_band: np.ndarray
) -> Estimate:
    """The mean gap over sets of folds and drawn bands, and its 95 % interval.

    `redrawn` [draw] are the gaps of each set's draws, `times` [draw, part] how often each part of
    the entities is in a draw, `by_band` [draw] how far the draw's own band moves the gap. No
    interval where most draws leave a group empty.
    """
    finite = np.isfinite(gaps)
    if not finite.any():
        return Estimate(np.nan, np.nan, np.nan, 0)
    means = np.mean([drawn for drawn, has in zip(redrawn, finite, strict=True) if has], axis=0)
    means = means + by_band
    shifts, usable = by_band[np.isfinite(by_band)], np.isfinite(means)
    value = float(np.mean(np.array(gaps)[finite]) + (shifts.mean() if len(shifts) else np.nan))
    if usable.sum() < max(2, len(means) / 2):
        return Estimate(value, np.nan, np.nan, 0)
    reach = Z * float(np.sqrt(smoothed_variance(means[usable], times[usable])))
    return Estimate(value, value - reach, value + reach, 0)


def smoothed_variance(drawn: np.ndarray, times: np.ndarray) -> float:
    """The variance of the mean of bootstrap draws [draw], by the infinitesimal jackknife.

    `times` [draw, part] are how often each part is in a draw. A mean over draws varies less than a
    draw; its variance is the sum of squared covariances with the parts (Efron, "Estimation and
    accuracy after model selection", 2014). With few draws noise adds to these squares. Half of it
    is subtracted: intervals without all of it held the mean gap of simulated worlds in 85 to 96 %,
    with all of it in 96 to 99 %, and with half in 93 to 98 %.
    """
    away, counts = drawn - drawn.mean(), times - times.mean(axis=0)
    products = counts * away[:, None]  # [draw, part]
    covariance = products.mean(axis=0)
    noise = np.square(products - covariance).mean(axis=0) / len(drawn)
    return float(np.maximum((covariance**2 - noise / 2).sum(), 0.0))


def gap_of(
    group: tuple[np.ndarray, ...],
    effect: tuple[np.ndarray, ...],
    *,
    delta: Delta,
    weight: np.ndarray | float = 1.0,
) -> float:
    """The gap from clean and knocked-out logits [question] of the probes of group and effect.

    Each sample counts `weight` times. NaN where a group is empty.
    """
    flipped = (group[0] > 0) != (group[1] > 0)
    moved = delta_p(*effect, delta=delta)
    in_q, in_a = weight * flipped, weight * ~flipped
    if not (in_q.any() and in_a.any()):
        return np.nan
    return float(in_q @ moved / in_q.sum() - in_a @ moved / in_a.sum())
