"""The strict gap, and an interval that includes the probes' own uncertainty.

The group comes from side a and the effect from side b. A bootstrap of the samples alone treats the
probes as fixed and covers the gap of other questions in 87 %. Here entities are drawn, in parts,
for the samples *and* for what the probes learn from. The probes are not fitted again for each draw:
one Newton step from the full fit tells how leaving out a part moves every reading, and a draw adds
these up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from anchorscope.config import Balance, Config, Delta, unit_of
from anchorscope.engine.passes import CLEAN, KNOCKOUT
from anchorscope.pathways.band import (
    SIDES,
    Band,
    band_error,
    band_within,
    read_band,
    rows_by_entity,
    side_overlap,
    squared_move,
)
from anchorscope.pathways.effects import delta_p
from anchorscope.probes.folds import training_rows
from anchorscope.probes.labelled import Covariates, Labelled
from anchorscope.probes.many_fits import class_weights, fit_many
from anchorscope.probes.readings import Readings
from anchorscope.records import Estimate
from anchorscope.run_folder.states import StateBank
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
    """The gap with group and effect from side b alone; it differs from strict by circularity."""
    side = (band.side("b"), band.side("b", "knockout"))
    return _gap(side, side, np.ones(band.n), unit)


def gap_with_interval(gaps: Sequence[float], *drawn: np.ndarray) -> Estimate:
    """The mean gap over sets of folds; each of `drawn` [draw] is one independent uncertainty."""
    finite_gaps = np.array([gap for gap in gaps if np.isfinite(gap)])
    value = float(finite_gaps.mean()) if len(finite_gaps) else np.nan
    variance = 0.0
    for gaps_drawn in drawn:
        finite = gaps_drawn[np.isfinite(gaps_drawn)]
        if not len(finite_gaps) or len(finite) < max(2, len(gaps_drawn) / 2):
            return Estimate(value, np.nan, np.nan, 0)
        variance += float(finite.var(ddof=1))
    reach = Z * float(np.sqrt(variance))
    return Estimate(value, value - reach, value + reach, 0)


def gaps_of_other_bands(
    readings: Readings, *, covariates: Covariates, seed: int, unit: Delta = "points"
) -> np.ndarray:
    """The gap over the bands that other draws of the entities would have chosen, [draw]."""
    rng = np.random.default_rng(seed)
    members = rows_by_entity(readings.entity, len(readings.z))
    error, by_band = band_error(readings, seed=seed), {}
    gaps = []
    for _ in range(BANDS):
        drawn = rng.integers(len(members), size=len(members))
        rows = np.concatenate([members[number] for number in drawn])
        areas = np.array([auroc(readings.z[rows], clean[rows]) for clean in readings.of("paper").T])
        band = band_within(areas, error)
        if band and band not in by_band:
            by_band[band] = strict_gap(read_band(readings, band, covariates=covariates), unit=unit)
        gaps.append(by_band.get(band, np.nan))
    return np.array(gaps)


class OwnFolds(NamedTuple):
    """The run's own set of folds: the band's readings, and gaps of entities drawn again."""

    band: Band
    redrawn: np.ndarray  # [draw]


def own_folds(
    answers: Labelled,
    config: Config,
    readings: Readings,
    layers: Sequence[int],
    influences: Sequence[Influence],
) -> OwnFolds:
    """The band as the run's own probes read it, and its gap in other draws of the entities.

    `influences` are those of `layers`, in their order.
    """
    part = entity_parts(answers.entities, seed=config.seed)
    moved = np.mean([found.moved for found in influences], axis=0)
    a, b = np.stack([found.directions for found in influences], axis=2)
    band = read_band(readings, layers, covariates=answers.covariates)
    lengths = [found.length for found in influences]
    band = replace(band, overlap=side_overlap(a, b, lengths))
    read = np.isfinite(moved).all(axis=(0, 1, 3))
    redrawn = redrawn_gaps(
        band, moved[:, :, read], part[read], seed=config.seed, unit=unit_of(config.delta)
    )
    return OwnFolds(band, redrawn)


class Influence(NamedTuple):
    """Probes a and b of one layer, and how their readings depend on parts of the questions."""

    # [side, clean or cut, question, part]: logits without a part, less those with
    moved: np.ndarray
    directions: np.ndarray  # [side, fold, width], the calibrated coefficients
    length: float  # the mean squared length of the knockout's displacement


def influence_of_layer(
    answers: Labelled, bank: StateBank, config: Config, readings: Readings, layer: int
) -> Influence:
    """`layer_influence` of a layer of a run folder, on the run's own set of folds."""
    clean, cut = (bank.layer(name, layer) for name in (CLEAN.name, KNOCKOUT.name))
    sides = [readings.probes.index(side) for side in SIDES]
    return layer_influence(
        clean,
        cut,
        readings.logits[CLEAN.name][sides, :, layer - 1],
        z=answers.z,
        fold=answers.fold,
        part=entity_parts(answers.entities, seed=config.seed),
        C=config.C,
        balance=config.balance,
    )


def layer_influence(
    clean: np.ndarray,
    knockout: np.ndarray,
    calibrated: np.ndarray,
    *,
    z: np.ndarray,
    fold: np.ndarray,
    part: np.ndarray,
    C: float,
    balance: Balance,
) -> Influence:
    """How a layer's logits move when each part of the questions is left out of the training.

    `clean` and `knockout` are states [question, width], `calibrated` [side, question] the clean
    logits that calibrated probes a and b read of held-out questions, `part` [question] from 0.
    """
    x, y, z = (np.asarray(values, dtype=np.float64) for values in (clean, knockout, z))
    folds = np.unique(fold)
    learns = np.array(
        [training_rows(fold, held_out=int(f), probe=side) for side in SIDES for f in folds]
    )
    weights = class_weights(z, learns, balance)
    fitted = fit_many(x, np.broadcast_to(z, weights.shape), weights, np.full(len(weights), C))
    member = (part[:, None] == np.arange(part.max() + 1)).astype(np.float64)
    moved = np.zeros((len(SIDES), 2, len(z), member.shape[1]))
    direction = np.zeros((len(SIDES), len(folds), x.shape[1]))
    for number, (train, weight, w, b) in enumerate(zip(learns, weights, *fitted, strict=True)):
        side, at = divmod(number, len(folds))
        test = fold == folds[at]
        middle, spread = x[train].mean(axis=0), x[train].std(axis=0)
        scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
        columns, share = (x[train] - middle) * scale, weight[train] / weight.sum()
        chance = expit(x[train] @ w + b)
        # What the loss without a part pulls at the coefficients and at the intercept.
        pull = (share * (chance - z[train]))[:, None] * member[train]
        right = columns.T @ pull + np.outer(w * spread, share @ member[train]) / C
        step, shift = _newton_step(columns, share * chance * (1 - chance), right, pull.sum(0), C)
        # Platt's line turns one of these readings into the other, so that its slope is exact.
        raw = (x[test] @ w).std()
        stretch = calibrated[side, test].std() / raw if raw > 0 else 0.0
        direction[side, at] = stretch * w
        for kind, states in enumerate((x, y)):
            moved[side, kind, test] = stretch * (((states[test] - middle) * scale) @ step + shift)
    return Influence(moved, direction, squared_move(clean, knockout))


def _newton_step(
    x: np.ndarray, bend: np.ndarray, right: np.ndarray, last: np.ndarray, C: float
) -> tuple[np.ndarray, np.ndarray]:
    """Solve curvature · step = (right, last) for coefficients [width, part], intercepts [part].

    The curvature is that of a logistic loss with `bend` [row] and penalty 1/C on the coefficients.
    The intercept has no penalty: columns centred by the bend do without it. Then the smaller of
    two systems is solved, rows by rows (Woodbury's identity) or columns by columns.
    """
    total = bend.sum()
    middle = bend @ x / total
    half = np.sqrt(bend)[:, None] * (x - middle)
    right = right - np.outer(middle, last)
    if len(x) < x.shape[1]:
        inner = np.eye(len(x)) + C * (half @ half.T)
        step = C * (right - C * half.T @ cho_solve(cho_factor(inner), half @ right))
    else:
        inner = half.T @ half + np.eye(x.shape[1]) / C
        step = cho_solve(cho_factor(inner), right)
    return step, last / total - middle @ step


def redrawn_gaps(
    band: Band,
    moved: np.ndarray,
    part: np.ndarray,
    *,
    seed: int,
    unit: Delta = "points",
) -> np.ndarray:
    """The gap of entities drawn with replacement and probes that learnt from these, [draw].

    `moved` [side, clean or cut, question, part] is the mean over the band's layers of what
    `layer_influence` gives, `part` [question] the part of each of the band's samples.
    """
    count = moved.shape[-1]
    times = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    before = {side: (band.side(side), band.side(side, "knockout")) for side in SIDES}
    gaps = []
    for drawn in times:
        a, b = (
            tuple(
                logits + by_part @ (1 - drawn)
                for logits, by_part in zip(before[side], moves, strict=True)
            )
            for side, moves in zip(SIDES, moved, strict=True)
        )
        gaps.append(_gap(a, b, drawn[part].astype(float), unit))
    return np.array(gaps)


def entity_parts(entity: Sequence[str] | np.ndarray, *, seed: int) -> np.ndarray:
    """The part of each sample, [question] from 0; all samples of an entity are in one."""
    number = np.unique(np.asarray(entity), return_inverse=True)[1]
    count = number.max() + 1
    order = np.random.default_rng(seed).permutation(count)
    return (order % min(PARTS, max(2, count // 2)))[number]


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
