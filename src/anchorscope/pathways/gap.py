"""The strict gap, and an interval that includes the probes' own uncertainty.

The group comes from side a and the effect from side b. A bootstrap of the samples alone takes the
probes for given and covers the gap of other questions in 87 %. Here entities are drawn, in parts,
for the samples *and* for what the probes learn from. The probes are not fitted again from the
start: one Newton step from the full fit tells how leaving out a part moves every reading, and a
draw adds these up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from anchorscope.config import Balance, Delta
from anchorscope.pathways.band import SIDES, Band, band_error, band_within, read_band
from anchorscope.pathways.effects import delta_p
from anchorscope.probes.folds import ProbeName, training_rows
from anchorscope.probes.labelled import Covariates
from anchorscope.probes.many_fits import class_weights, fit_many
from anchorscope.probes.readings import Readings
from anchorscope.records import Estimate
from anchorscope.stats.intervals import Z
from anchorscope.stats.ranking import auroc

PARTS = 40  # of the entities, drawn with replacement
DRAWS = 200
BANDS = 30  # draws of the entities, for the band they choose


def strict_gap(band: Band, *, unit: Delta = "points") -> float:
    """Mean ΔP (side b) of samples that side a flips less that of the others; NaN for one group."""
    a, b = ((band.side(p), band.side(p, "knockout")) for p in SIDES)
    return _gap(a, b, np.ones(band.n), unit)


def same_gap(band: Band, *, unit: Delta = "points") -> float:
    """The gap with group and effect from side b alone: what lies between is the circularity."""
    side = (band.side("b"), band.side("b", "knockout"))
    return _gap(side, side, np.ones(band.n), unit)


def gap_with_interval(gaps: Sequence[float], *drawn: np.ndarray) -> Estimate:
    """The mean gap over sets of folds; each of `drawn` [draw] is one independent uncertainty."""
    known = np.array([gap for gap in gaps if np.isfinite(gap)])
    value = float(known.mean()) if len(known) else np.nan
    variance = 0.0
    for gaps_drawn in drawn:
        finite = gaps_drawn[np.isfinite(gaps_drawn)]
        if not len(known) or len(finite) < max(2, len(gaps_drawn) / 2):
            return Estimate(value, np.nan, np.nan, 0)
        variance += float(finite.var(ddof=1))
    reach = Z * float(np.sqrt(variance))
    return Estimate(value, value - reach, value + reach, 0)


def gaps_of_other_bands(
    readings: Readings, *, covariates: Covariates, seed: int, unit: Delta = "points"
) -> np.ndarray:
    """The gap over the bands that other draws of the entities would have chosen, [draw]."""
    rng = np.random.default_rng(seed)
    own = np.arange(len(readings.z)) if readings.entity is None else readings.entity
    entity = np.unique(own, return_inverse=True)[1]
    members = np.split(np.argsort(entity, kind="stable"), np.cumsum(np.bincount(entity))[:-1])
    error, by_band = band_error(readings, seed=seed), {}
    gaps = []
    for _ in range(BANDS):
        drawn = rng.integers(len(members), size=len(members))
        rows = np.concatenate([members[number] for number in drawn])
        areas = np.array([auroc(readings.z[rows], of[rows]) for of in readings.of("paper").T])
        band = band_within(areas, error)
        if band and band not in by_band:
            by_band[band] = strict_gap(read_band(readings, band, covariates=covariates), unit=unit)
        gaps.append(by_band.get(band, np.nan))
    return np.array(gaps)


def redrawn_gaps(
    band: Band,
    clean: Sequence[np.ndarray],
    knockout: Sequence[np.ndarray],
    *,
    C: float,
    balance: Balance,
    seed: int,
    unit: Delta = "points",
) -> np.ndarray:
    """The gap of entities drawn with replacement and probes that learnt from these, [draw].

    `clean` and `knockout` are the states [question, width] of the band's layers, of the band's
    samples in their order.
    """
    part = _parts(band, seed)
    moved = {p: np.zeros((2, band.n, part.max() + 1)) for p in SIDES}  # logits, clean and cut
    for x, y in zip(clean, knockout, strict=True):
        for probe in SIDES:
            step = _one_layer(np.asarray(x, float), np.asarray(y, float), band, probe, part,
                              C=C, balance=balance)  # fmt: skip
            moved[probe] += step / len(clean)
    count = part.max() + 1
    times = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    return np.array([_drawn_gap(band, moved, drawn, drawn[part], unit) for drawn in times])


def _drawn_gap(
    band: Band,
    moved: Mapping[str, np.ndarray],
    times: np.ndarray,
    weight: np.ndarray,
    unit: Delta,
) -> float:
    """The gap where each part counts `times` [part], and so each sample `weight` [question]."""
    a, b = (
        (
            band.side(p) + moved[p][0] @ (1 - times),
            band.side(p, "knockout") + moved[p][1] @ (1 - times),
        )
        for p in SIDES
    )
    return _gap(a, b, weight.astype(float), unit)


def _gap(
    a: tuple[np.ndarray, np.ndarray],
    b: tuple[np.ndarray, np.ndarray],
    weight: np.ndarray,
    unit: Delta,
) -> float:
    """The gap of one reading, each sample counted `weight` [question] times."""
    flipped = (a[0] > 0) != (a[1] > 0)
    effect = delta_p(b[0], b[1], delta=unit)
    of_q, of_a = weight * flipped, weight * ~flipped
    if not (of_q.any() and of_a.any()):
        return np.nan
    return float(of_q @ effect / of_q.sum() - of_a @ effect / of_a.sum())


def _parts(band: Band, seed: int) -> np.ndarray:
    """The part of each sample, [question] from 0; all samples of an entity are in one."""
    own = np.arange(band.n) if band.entity is None else band.entity
    entity = np.unique(own, return_inverse=True)[1]
    count = entity.max() + 1
    order = np.random.default_rng(seed).permutation(count)
    return (order % min(PARTS, max(2, count // 2)))[entity]


def _one_layer(
    x: np.ndarray, y: np.ndarray, band: Band, probe: str, part: np.ndarray, *, C: float,
    balance: Balance,
) -> np.ndarray:  # fmt: skip
    """How a layer's logits move when each part is left out, [clean or cut, question, part]."""
    z, fold = band.z.astype(np.float64), band.fold
    folds = np.unique(fold)
    learns = np.array(
        [training_rows(fold, held_out=int(f), probe=cast(ProbeName, probe)) for f in folds]
    )
    weights = class_weights(z, learns, balance)
    y_all = np.broadcast_to(z, weights.shape)
    coefficients, intercepts = fit_many(x, y_all, weights, np.full(len(folds), float(C)))
    moved = np.zeros((2, len(z), part.max() + 1))
    member = (part[:, None] == np.arange(part.max() + 1)).astype(np.float64)
    for number, f in enumerate(folds):
        train, test = learns[number], fold == f
        share = weights[number][train] / weights[number].sum()
        middle, scale = x[train].mean(axis=0), x[train].std(axis=0)
        scale = np.where(scale > 0, scale, np.inf)
        columns = np.column_stack([(x[train] - middle) / scale, np.ones(train.sum())])
        own = np.where(
            np.isfinite(scale), coefficients[number] * np.where(np.isfinite(scale), scale, 0), 0.0
        )
        chance = expit(x[train] @ coefficients[number] + intercepts[number])
        curvature = (columns * (share * chance * (1 - chance))[:, None]).T @ columns
        curvature[np.diag_indices(len(own))] += 1 / C
        curvature[-1, -1] += 1e-9
        lost = columns.T @ ((share * (chance - z[train]))[:, None] * member[train])
        lost[:-1] += own[:, None] / C * (share @ member[train])
        step = cho_solve(cho_factor(curvature), lost)
        for kind, states in enumerate((x, y)):
            rows = np.column_stack([(states[test] - middle) / scale, np.ones(test.sum())])
            moved[kind, test] = rows @ step
    return moved * _slope(x, coefficients, intercepts, band, probe, folds)


def _slope(
    x: np.ndarray,
    coefficients: np.ndarray,
    intercepts: np.ndarray,
    band: Band,
    probe: str,
    folds: np.ndarray,
) -> float:
    """How much the calibration stretches these logits: the band's spread over theirs."""
    raw = np.zeros(band.n)
    for number, f in enumerate(folds):
        rows = band.fold == f
        raw[rows] = x[rows] @ coefficients[number] + intercepts[number]
    spread = raw.std()
    return float(band.side(probe).std() / spread) if spread > 0 else 0.0
