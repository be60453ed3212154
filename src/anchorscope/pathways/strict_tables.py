"""strict.csv: the measurements of strict mode at every layer.

Agreement of independent probes on the groups; class collapse; the gaps beside what one mechanism
would give; whether the truth is gone from knocked-out states or only moved; what the group adds in
predicting errors. The five questions behind a finding are answered on the band, not on a layer.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
from scipy.special import expit

from anchorscope.config import Config, Delta, unit_of
from anchorscope.engine.interventions import CLEAN, KNOCKOUT
from anchorscope.pathways.effects import ROLES, Roles, delta_p, estimate_columns, flips, prediction
from anchorscope.pathways.fold_layers import gap_of
from anchorscope.pathways.one_law import (
    Fit,
    Pair,
    Predictors,
    factors_of,
    gaps,
    one_law,
    shared_noise,
)
from anchorscope.probes.cross_fit import fold_logits
from anchorscope.probes.folds import Covariates, training_rows
from anchorscope.probes.probe_set import Readings
from anchorscope.records import MODES, Estimate
from anchorscope.run_folder.states import StateBank
from anchorscope.stats.intervals import (
    NOTHING,
    Draws,
    bootstrap_mean,
    difference_of_means,
)
from anchorscope.stats.logistic import cross_fitted_logits
from anchorscope.stats.mahalanobis import Mahalanobis
from anchorscope.stats.ranking import auroc, auroc_interval, kappa_interval

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
    bank: StateBank,
    layer: int,
    *,
    config: Config,
    covariates: Covariates,
) -> Row:
    """The row of one layer in strict.csv, without model and dataset."""
    states = bank.layer(CLEAN.name, layer), bank.layer(KNOCKOUT.name, layer)
    draws, unit = Draws(seed=config.seed, resamples=config.resamples), unit_of(config.delta)
    read = ~np.isnan(readings.at(layer, "paper", "knockout"))
    paper, same = (
        tuple(readings.at(layer, probe, name)[read] for name in ("clean", "knockout"))
        for probe in ("paper", "b")
    )
    row: Row = {"layer": layer, "n": int(read.sum())}
    row |= estimate_columns(**agreement(readings, layer, draws, entity=covariates.entity))
    row |= class_collapse(*paper, delta=unit)
    row |= null_gaps(readings, layer, read, covariates, seed=draws.seed, unit=unit)
    row["same_gap"] = gap_of(same, same, delta=unit)
    row |= refit_columns(states, readings, layer, config=config, entity=covariates.entity)
    row |= _group_adds(readings, layer, covariates, draws)
    for mode, (group, measure) in ROLES.items():
        gap = NOTHING
        if "answer-only" in readings.logits:
            flipped = flips(readings.at(layer, group), readings.at(layer, group, "knockout"))
            after = readings.at(layer, measure, "answer-only")
            change = delta_p(readings.at(layer, measure), after, delta=unit)
            gap = difference_of_means(change, flipped, draws)
        row |= estimate_columns(**{f"answer_only_{mode}": gap})
    return row


def agreement(
    readings: Readings, layer: int, draws: Draws, *, entity: np.ndarray | None = None
) -> dict[str, Estimate]:
    """Cohen's κ of the groups by probes a and b, and by the paper probe at successive layers.

    Each flip is decided by its own probe. NaN where a probe knows one group only: then there is
    nothing to agree on.
    """

    def flipped(probe: str, layer: int) -> np.ndarray:
        return flips(readings.at(layer, probe), readings.at(layer, probe, "knockout"))

    last, here = layer == readings.layers, flipped("paper", layer)
    after = np.full(len(here), np.nan) if last else flipped("paper", layer + 1)
    kappa = partial(kappa_interval, draws=draws, entity=entity)
    return {
        "kappa": kappa(flipped("a", layer), flipped("b", layer)),
        "kappa_next": kappa(here, after),
    }


def class_collapse(clean: np.ndarray, knockout: np.ndarray, *, delta: Delta = "points") -> Row:
    """How far the predicted class explains the groups at a layer, from logits [question].

    Share that flips and mean ΔP within each predicted class; AUROC of the signed clean logit for
    the group (0.5 to 1) and the share of the group's entropy that ŷ explains, NaN for one group;
    and whether ŷ or the clean logit nearly determines the group.
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
    """The share of a group's entropy that `by` explains: I(group; by) / H(group), of 0/1 lists."""
    from sklearn.metrics import homogeneity_score  # slow to import, and for strict mode alone

    return float(homogeneity_score(group, by)) if len(np.unique(group)) > 1 else np.nan


def null_gaps(
    readings: Readings,
    layer: int,
    read: np.ndarray,
    covariates: Covariates,
    *,
    seed: int,
    unit: Delta,
) -> Row:
    """The gaps of both modes in points and in logits, and their null bands, over all and within ŷ.

    Only the questions `read` bool have a knocked-out state. Within a predicted class (ŷ is that of
    the effect's probe) the law is that of the class: a bend between the classes is still one
    mechanism. Strict mode's null needs a control that was read for all questions and moves them.
    """

    def logits(probe: str, intervention: str = "clean") -> np.ndarray:
        return readings.at(layer, probe, intervention)[read]

    control, row = False, {}
    if "neutral" in readings.logits:
        away = np.abs(logits("paper", "neutral") - logits("paper"))
        control = bool(away.any() and np.isfinite(away).all())
    belief = np.mean([logits(name) for name in readings.probes], axis=0)
    factors = factors_of(covariates.take(read))
    for mode, within in product(MODES, (False, True)):
        roles, start = ROLES[mode], f"{mode}_within" if within else mode
        clean = logits(roles.effect)
        strata = prediction(clean) if within else np.zeros(len(clean))
        predictors = Predictors(readings.fold[read], strata, belief, factors)

        def laws(
            intervention: str, roles: Roles = roles, predictors: Predictors = predictors
        ) -> tuple[Fit, ...]:
            return tuple(one_law(logits(p), logits(p, intervention), predictors) for p in roles)

        group, effect = ((logits(probe), logits(probe, "knockout")) for probe in roles)
        shared = shared_noise(*laws("neutral")) if mode == "strict" and control else None
        found = gaps(
            Pair(*group, *effect, strata), laws("knockout"), seed=seed, points=unit, shared=shared
        )
        for end, gap in zip(("", "_logit"), found.values(), strict=True):
            parts = (f"{start}_null{end}_{part}" for part in ("low", "high", "p"))
            row |= dict(zip((f"{start}_gap{end}", *parts), gap, strict=True))
    return row


def refit_columns(
    states: tuple[np.ndarray, np.ndarray],
    readings: Readings,
    layer: int,
    *,
    config: Config,
    entity: np.ndarray | None,
) -> Row:
    """AUROC of clean and retrained probes on knocked-out states, and how far these moved.

    `states` are the layer's clean and knocked-out ones [question, width]. The norm is the mean of
    ‖x' − x‖ / ‖x‖; the Mahalanobis distance is a median, as a multiple of that of clean states.
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
        **estimate_columns(knockout_auroc=by_clean, refit_auroc=by_refit),
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
    # 20.7 nats at most, so that no single confident mistake decides the mean.
    losses = [
        -np.log(np.clip(expit(np.where(y == 1, logit, -logit)), _TINY, 1))
        for logit in (without, with_group)
    ]
    gain = bootstrap_mean(losses[0] - losses[1], seed=draws.seed, resamples=draws.resamples)
    return dict(zip(ADDS, (auroc(y, without), auroc(y, with_group), *gain[:3]), strict=True))


def _group_adds(readings: Readings, layer: int, covariates: Covariates, draws: Draws) -> Row:
    """What the strict group adds to both probes' logits, margins and covariates in predicting z.

    Probe a's too, because the group is a's: beyond b's logit alone the group would only show what
    a reads of z.
    """
    logits = [readings.at(layer, probe) for probe in ("a", "b")]
    flipped = flips(readings.at(layer, "a"), readings.at(layer, "a", "knockout"))
    rows = ~np.isnan(flipped)
    columns = np.column_stack([*logits, *map(np.abs, logits), covariates.columns])
    return adds_columns(readings.z[rows], flipped[rows], columns[rows], readings.fold[rows], draws)
