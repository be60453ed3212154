"""strict.csv: what strict mode measures at every layer.

Agreement: do independent probes put a sample into the same group? Class collapse: is the pathway
only the predicted class? Gaps: how far Q falls below A, beside what one mechanism would give.
Reliability: do two probes that share no training question see the same residual? Two probes agree a
little about *any* movement of a state, because their directions are alike; only what goes beyond
the neutral control is the question's. Shapes: one hump of shifts, or two? Refit: is the truth gone
from knocked-out states, or only moved away from where the probe looks? What the group adds to a
prediction of errors beyond logits, margins and covariates.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
from scipy.special import entr, expit

from anchorscope.config import Config, Delta, unit_of
from anchorscope.pathways.effects import ROLES, delta_p, estimate_columns, flips, prediction
from anchorscope.pathways.gap import gap_of
from anchorscope.pathways.one_law import (
    Fit,
    Pair,
    Predictors,
    factors_of,
    fit_line,
    gaps,
    kinds_share,
    one_law,
    shared_noise,
)
from anchorscope.probes.fold_probes import fold_logits
from anchorscope.probes.folds import training_rows
from anchorscope.probes.labelled import Covariates
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Estimate, Mode
from anchorscope.stats.humps import NO_SHAPE, Shape, shape
from anchorscope.stats.intervals import (
    NOTHING,
    Draws,
    bootstrap_mean,
    difference_of_means,
    percentile_interval,
)
from anchorscope.stats.logistic import cross_fitted_logits
from anchorscope.stats.mahalanobis import Mahalanobis
from anchorscope.stats.ranking import auroc, auroc_interval, correlation_with_draws, kappa_interval

# All samples; within each predicted class and both, each with its own law; the true classes.
SUBSETS = ("all", "right", "wrong", "both", "z0", "z1")
# Where ŷ takes this share of the group's entropy away, the group is the predicted class. 0.75 is
# reached when about 96 % of one class flip and 4 % of the other.
EXPLAINED = 0.75
# Or where the signed clean logit alone orders the two groups all but perfectly.
SEPARATED = 0.97
_TINY = 1e-9
ADDS = ("adds_auroc_without", "adds_auroc_with", "adds_gain", "adds_gain_low", "adds_gain_high")
Row = dict[str, Any]  # by column


def strict_row(
    readings: Readings,
    states: tuple[np.ndarray, np.ndarray],
    layer: int,
    *,
    config: Config,
    covariates: Covariates,
) -> Row:
    """What layer k shows, by column of strict.csv but for model and dataset.

    `states` are the layer's clean and knocked-out states [question, width].
    """
    draws = Draws(seed=config.seed, resamples=config.resamples)
    at = _Layer(readings, layer, covariates, unit_of(config.delta))
    clean, knocked = at.logits("paper"), at.logits("paper", "knockout")
    moved = knocked - clean
    row: Row = {"layer": layer, "n": len(at.fold)}
    for name, found in agreement(readings, layer, draws, entity=covariates.entity).items():
        row |= estimate_columns(name, found)
    row |= class_collapse(clean, knocked, delta=at.unit)
    for mode in MODES:
        row |= _gaps(at, mode, "all", draws) | _gaps(at, mode, "both", draws)
    same = (at.logits("b"), at.logits("b", "knockout"))
    row["same_gap"] = gap_of(same, same, delta=at.unit)
    row |= _reliability(at, draws)
    beyond = Estimate(np.nan, np.nan, np.nan, len(at.fold))
    if at.control:
        by_control = np.abs(at.logits("paper", at.control) - clean)
        beyond = bootstrap_mean(
            np.abs(moved) - by_control,
            seed=draws.seed,
            resamples=draws.resamples,
            entity=at.entity,
        )
    row |= estimate_columns("beyond_random", beyond)
    row |= {
        "control": at.control,
        "kinds": kinds_share(clean, knocked, at.predictors("paper")) if len(clean) else np.nan,
        "common": float(moved.mean() ** 2 / (moved**2).mean()) if (moved != 0).any() else np.nan,
        "residual": fit_line(clean, knocked, at.fold).residual.std() if len(clean) else np.nan,
    }
    for name in SUBSETS:
        found = _shape(at, name, draws.seed)
        row |= {f"dip_p_{name}": found.p, f"bic_{name}": found.bic}
    row |= refit_columns(states, readings, layer, config=config, entity=covariates.entity)
    row |= _group_adds(readings, layer, covariates, draws)
    for mode, (group, measure) in ROLES.items():
        gap = NOTHING
        if "answer-only" in readings.logits:
            flipped = flips(readings.at(layer, group), readings.at(layer, group, "knockout"))
            after = readings.at(layer, measure, "answer-only")
            change = delta_p(readings.at(layer, measure), after, delta=at.unit)
            gap = difference_of_means(change, flipped, draws)
        row |= estimate_columns(f"answer_only_{mode}", gap)
    return row


def agreement(
    readings: Readings, layer: int, draws: Draws, *, entity: np.ndarray | None = None
) -> dict[str, Estimate]:
    """κ of the groups that probes a and b give: all, by b's prediction; and with the next layer.

    Each flip is decided by its own probe. NaN where a probe knows one group only: then there is
    nothing to agree on.
    """

    def flipped(probe: str, layer: int) -> np.ndarray:
        return flips(readings.at(layer, probe), readings.at(layer, probe, "knockout"))

    def compared(one: np.ndarray, other: np.ndarray, rows: np.ndarray) -> Estimate:
        own = None if entity is None else entity[rows]
        return kappa_interval(
            one[rows], other[rows], seed=draws.seed, resamples=draws.resamples, entity=own
        )

    a, b, paper = (flipped(probe, layer) for probe in ("a", "b", "paper"))
    predicted = prediction(readings.at(layer, "b"))
    last = layer == readings.layers
    after = np.full(len(predicted), np.nan) if last else flipped("paper", layer + 1)
    everything = np.ones(len(predicted), dtype=bool)
    return {
        "kappa": compared(a, b, everything),
        "kappa_right": compared(a, b, predicted == 0),
        "kappa_wrong": compared(a, b, predicted == 1),
        "kappa_next": compared(paper, after, everything),
    }


def class_collapse(clean: np.ndarray, knockout: np.ndarray, *, delta: Delta = "points") -> Row:
    """What the predicted class explains at one layer, from one probe's logits [question].

    Share that flips and mean ΔP within each predicted class; AUROC of the signed clean logit for
    the group (0.5 to 1) and the share of the group's entropy that ŷ explains, NaN for one group;
    and whether ŷ says nearly all there is to say about the group.
    """
    flipped, predicted = flips(clean, knockout), prediction(clean)
    effect = delta_p(clean, knockout, delta=delta)
    area = auroc(flipped.astype(int), clean)
    area = max(area, 1 - area)  # which side flips is not the point
    by_class = explained(flipped, predicted)
    row: Row = {}
    for name, values in (("flip", flipped), ("delta", effect)):
        for which, ending in enumerate(("right", "wrong")):
            mine = values[predicted == which]
            row[f"{name}_{ending}"] = float(mine.mean()) if len(mine) else np.nan
    return {
        **row,
        "group_auroc": area,
        "group_explained": by_class,
        "collapse": bool(by_class >= EXPLAINED or area >= SEPARATED),
    }


def explained(group: np.ndarray, by: np.ndarray) -> float:
    """I(group; by) / H(group) of two 0/1 lists; NaN where there is one group only.

    scikit-learn's homogeneity_score (the same, tested) calls one group only 1: all explained.
    """
    if not len(group):
        return np.nan
    cell = 2 * (np.asarray(by) == 1) + (np.asarray(group) == 1)
    both = np.bincount(cell, minlength=4).reshape(2, 2)  # [by, group]
    whole, by_value, both = (
        entr(counts / len(cell)).sum() for counts in (both.sum(axis=0), both.sum(axis=1), both)
    )
    return float(np.clip(1 - (both - by_value) / whole, 0, 1)) if whole > 0 else np.nan


class _Layer:
    """The logits of one layer, of the questions that have a knocked-out state."""

    def __init__(self, readings: Readings, layer: int, covariates: Covariates, unit: Delta) -> None:
        self.readings, self.layer = readings, layer
        self.unit: Delta = unit
        self.read = ~np.isnan(readings.at(layer, "paper", "knockout"))
        self.fold, self.z = readings.fold[self.read], readings.z[self.read]
        covariates = covariates.take(self.read)
        self.factors, self.entity = factors_of(covariates), covariates.entity
        self._laws: dict[tuple[str, ...], Fit] = {}
        self.control = ""  # "neutral" where that was read of all of them and moves their logits
        if "neutral" in readings.logits:
            away = np.abs(self.logits("paper", "neutral") - self.logits("paper"))
            self.control = "neutral" if away.any() and np.isfinite(away).all() else ""

    def logits(self, probe: str, intervention: str = "clean") -> np.ndarray:
        return self.readings.at(self.layer, probe, intervention)[self.read]

    def predictors(self, probe: str) -> Predictors:
        """The covariates of each sample for the one-mechanism law; ŷ is that of `probe`."""
        return Predictors(
            fold=self.fold,
            predicted=prediction(self.logits(probe)),
            belief=np.mean([self.logits(name) for name in self.readings.probes], axis=0),
            factors=self.factors,
        )

    def rows(self, subset: str, *, probe: str) -> np.ndarray:
        """Which of the questions belong to a subset; ŷ is that of `probe`."""
        if subset in ("all", "both"):
            return np.ones(len(self.fold), dtype=bool)
        if subset in ("z0", "z1"):
            return self.z == int(subset[1])
        return prediction(self.logits(probe)) == (subset == "wrong")

    def law(self, subset: str, probe: str, intervention: str = "knockout", *, classes: str) -> Fit:
        """What a probe's logits follow within a subset; ŷ is that of the probe `classes`.

        Within a class the law is that class's own, so that a bend between the classes does not
        pass for something the samples have of their own. Gaps, agreement and shapes ask for the
        same laws.
        """
        split = subset in ("both", "right", "wrong")
        key = (subset, probe, intervention, classes if split else "")
        if key not in self._laws:
            rows = self.rows(subset, probe=classes)
            own = self.predictors(classes).take(rows)
            clean, other = self.logits(probe)[rows], self.logits(probe, intervention)[rows]
            self._laws[key] = one_law(clean, other, own if split else own.together())
        return self._laws[key]


def _gaps(at: _Layer, mode: Mode, subset: Literal["all", "both"], draws: Draws) -> Row:
    """The gap of a mode in points and in logits, and its null band: all, or within ŷ ("both").

    Within a predicted class the law is that of the class: a bend between the classes is still one
    mechanism.
    """
    group, effect = ROLES[mode]
    shared = None
    if mode == "strict" and at.control:
        control = (at.law(subset, probe, at.control, classes=effect) for probe in ROLES[mode])
        shared = shared_noise(*control)
    clean = at.logits(effect)
    pair = Pair(
        group_clean=at.logits(group),
        group_knockout=at.logits(group, "knockout"),
        effect_clean=clean,
        effect_knockout=at.logits(effect, "knockout"),
        strata=prediction(clean) if subset == "both" else np.zeros(len(clean)),
    )
    found = gaps(
        pair,
        (at.law(subset, group, classes=effect), at.law(subset, effect, classes=effect)),
        seed=draws.seed,
        points=at.unit,
        shared=shared,
    )
    start, row = f"{mode}_within" if subset == "both" else mode, {}
    ends: dict[str, Delta] = {"": "points", "_logit": "logit"}
    for end, unit in ends.items():
        row |= {
            f"{start}_gap{end}": found[unit].value,
            f"{start}_null{end}_low": found[unit].low,
            f"{start}_null{end}_high": found[unit].high,
            f"{start}_null{end}_p": found[unit].p,
        }
    return row


def _reliability(at: _Layer, draws: Draws) -> Row:
    """How far a and b agree on the residuals within ŷ, and beyond what they do under the control.

    The same entities are drawn for both; without a control the excess is the agreement itself.
    """
    seen = {}
    for name in ("knockout", at.control) if at.control else ("knockout",):
        a, b = (at.law("both", probe, name, classes="b").residual for probe in ("a", "b"))
        seen[name] = correlation_with_draws(
            a, b, seed=draws.seed, resamples=draws.resamples, entity=at.entity
        )
    value, drawn = seen["knockout"]
    base, below = seen.get(at.control, (0.0, 0.0))
    return {
        **estimate_columns("reliability", _interval(value, drawn, len(at.fold))),
        "reliability_control": base if at.control else np.nan,
        **estimate_columns(
            "reliability_excess", _interval(value - base, drawn - below, len(at.fold))
        ),
    }


def _interval(value: float, drawn: np.ndarray, n: int) -> Estimate:
    if n < 3:
        return Estimate(value, np.nan, np.nan, n)
    return percentile_interval(value, drawn, n)


def _shape(at: _Layer, subset: str, seed: int) -> Shape:
    """Shape of the paper probe's shifts, without what the law already says of them."""
    rows = at.rows(subset, probe="paper")
    if not rows.any():
        return NO_SHAPE
    left = at.law(subset, "paper", classes="paper").residual
    # Both classes together are turned the same way round: towards ŷ.
    towards = np.where(at.logits("paper")[rows] > 0, 1.0, -1.0) if subset == "both" else 1.0
    return shape(towards * left, seed=seed, entity=None if at.entity is None else at.entity[rows])


def refit_columns(
    states: tuple[np.ndarray, np.ndarray],
    readings: Readings,
    layer: int,
    *,
    config: Config,
    entity: np.ndarray | None,
) -> Row:
    """How knocked-out states read to the clean probe and to one trained on them; how far they went.

    `states` are the layer's clean and knocked-out ones [question, width]. The norm is the mean of
    ‖x' − x‖ / ‖x‖, the Mahalanobis distance a median, that of clean states being 1.
    """
    cut = ~np.isnan(states[1]).any(axis=1)
    x, y = (values[cut].astype(np.float64) for values in states)
    z, fold = readings.z[cut], readings.fold[cut]
    entity = np.arange(len(z)) if entity is None else entity[cut]
    (logit,) = fold_logits(y, z[None].astype(float), fold, C=config.C, balance=config.balance)
    read = np.isfinite(logit)
    area = partial(auroc_interval, seed=config.seed, resamples=config.resamples)
    by_clean = area(z, readings.at(layer, "paper", "knockout")[cut], entity=entity)
    by_refit = area(z[read], logit[read], entity=entity[read])
    away = np.full((2, len(fold)), np.nan)  # of knocked-out and of clean states
    for held_out in np.unique(fold):
        test, train = fold == held_out, training_rows(fold, held_out=held_out, probe="paper")
        distance = Mahalanobis(x[train], seed=config.seed)
        away[0, test], away[1, test] = distance(y[test]), distance(x[test])
    size, moved = np.linalg.norm(x, axis=1), np.linalg.norm(y - x, axis=1)
    far, near = np.median(away, axis=1) if len(z) else (np.nan, np.nan)
    return {
        **estimate_columns("knockout_auroc", by_clean),
        **estimate_columns("refit_auroc", by_refit),
        "moved_norm": float((moved / size)[size > 0].mean()) if size.any() else np.nan,
        "moved_mahalanobis": float(far / near),
    }


def adds_columns(
    target: np.ndarray,
    group: np.ndarray,
    covariates: np.ndarray,
    fold: np.ndarray,
    draws: Draws,
) -> Row:
    """What a group [question] adds to `covariates` [question, column] in predicting a 0/1 target.

    AUROC without and with it, and the nats a question saved by it. Each fold is predicted from the
    other folds, so a group that is mere noise costs rather than adds. NaN in a column is filled
    with its median and marked in a column of its own.
    """
    # SimpleImputer(add_indicator=True) gives the same columns in another order, which moves the
    # last digits of the fit.
    columns = []
    for column in covariates.astype(np.float64).T:
        missing = np.isnan(column)
        if not missing.all():
            columns.append(np.where(missing, np.nanmedian(column), column))
        if missing.any() and not missing.all():
            columns.append(missing.astype(np.float64))
    filled = np.column_stack(columns)
    without = cross_fitted_logits(filled, target, fold)
    with_group = cross_fitted_logits(np.column_stack([filled, group]), target, fold)
    usable = ~(np.isnan(without) | np.isnan(with_group))
    if not usable.any() or len(np.unique(group)) < 2:
        return dict.fromkeys(ADDS, np.nan)
    y, without, with_group = target[usable], without[usable], with_group[usable]
    # 20.7 nats at most: one sure mistake may not decide a mean.
    losses = [
        -np.log(np.clip(expit(np.where(y == 1, logit, -logit)), _TINY, 1))
        for logit in (without, with_group)
    ]
    gain = bootstrap_mean(losses[0] - losses[1], seed=draws.seed, resamples=draws.resamples)
    return dict(zip(ADDS, (auroc(y, without), auroc(y, with_group), *gain[:3]), strict=True))


def _group_adds(readings: Readings, layer: int, covariates: Covariates, draws: Draws) -> Row:
    """What the strict group adds to both probes' signed logits and margins, and the covariates.

    Probe a's too, because the group is a's: beyond b's logit alone the group would only tell what
    a reads of z.
    """
    logits = [readings.at(layer, probe) for probe in ("a", "b")]
    flipped = flips(readings.at(layer, "a"), readings.at(layer, "a", "knockout"))
    rows = ~np.isnan(flipped)
    columns = np.column_stack([*logits, *map(np.abs, logits), covariates.columns])
    return adds_columns(readings.z[rows], flipped[rows], columns[rows], readings.fold[rows], draws)
