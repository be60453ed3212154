"""What the group adds to a prediction beyond logits, margins and covariates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from anchorscope.pathways.effects import flips
from anchorscope.probes.labelled import Covariates
from anchorscope.probes.readings import Readings
from anchorscope.records import Estimate
from anchorscope.stats.intervals import Draws, bootstrap_mean
from anchorscope.stats.logistic import fit_logistic
from anchorscope.stats.ranking import auroc

_RIDGE = 1.0  # a light penalty on standardised columns: enough to keep a separable fold finite
_TINY = 1e-9


@dataclass(frozen=True, kw_only=True)
class Adds:
    """Cross-fitted prediction of a 0/1 target without and with the group."""

    auroc_without: float
    auroc_with: float
    gain: Estimate  # nats a question saved by knowing the group; above 0: it adds something


def adds(
    target: np.ndarray,
    group: np.ndarray,
    covariates: np.ndarray,
    fold: np.ndarray,
    *,
    seed: int = 0,
    resamples: int = 1000,
) -> Adds:
    """What `group` [question] adds to `known` [question, column] in predicting `target`.

    Each fold is predicted from the other folds, so a group that is mere noise costs rather than
    adds. NaN in a column is filled with its median and marked in a column of its own.
    """
    target, group = np.asarray(target, dtype=int), np.asarray(group, dtype=np.float64)
    columns = _filled(covariates)
    without = _cross_fitted(columns, target, fold)
    with_group = _cross_fitted(np.column_stack([columns, group]), target, fold)
    usable = ~(np.isnan(without) | np.isnan(with_group))
    if not usable.any() or len(np.unique(group[~np.isnan(group)])) < 2:
        nothing = Estimate(np.nan, np.nan, np.nan, int(usable.sum()))
        return Adds(auroc_without=np.nan, auroc_with=np.nan, gain=nothing)
    y = target[usable]
    saved = _loss(y, without[usable]) - _loss(y, with_group[usable])
    return Adds(
        auroc_without=auroc(y, without[usable]),
        auroc_with=auroc(y, with_group[usable]),
        gain=bootstrap_mean(saved, seed=seed, resamples=resamples),
    )


def _cross_fitted(x: np.ndarray, y: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """The logit each question gets from the other folds; NaN where they hold one class only."""
    logit = np.full(len(y), np.nan)
    for rows in (fold == number for number in np.unique(fold)):
        if len(np.unique(y[~rows])) < 2:
            continue
        middle, spread = x[~rows].mean(axis=0), x[~rows].std(axis=0)
        scaled = (x - middle) / np.where(spread > 0, spread, 1.0)
        fitted = fit_logistic(scaled[~rows], y[~rows], ridge=_RIDGE)
        if fitted is not None:
            logit[rows] = scaled[rows] @ fitted[0][1:] + fitted[0][0]
    return logit


def _filled(covariates: np.ndarray) -> np.ndarray:
    # SimpleImputer(add_indicator=True) gives the same columns in another order, which moves the
    # last digits of the fit.
    columns = []
    for column in np.asarray(covariates, dtype=np.float64).T:
        missing = np.isnan(column)
        if missing.all():
            continue
        columns.append(np.where(missing, np.nanmedian(column), column))
        if missing.any():
            columns.append(missing.astype(np.float64))
    return np.column_stack(columns)


def _loss(y: np.ndarray, logit: np.ndarray) -> np.ndarray:
    """Nats of each question, 20.7 at most: one sure mistake may not decide a mean.

    scipy's log_expit has no such end (40 nats for a logit of 40).
    """
    return -np.log(np.clip(expit(np.where(y == 1, logit, -logit)), _TINY, 1))


def group_adds(readings: Readings, layer: int, covariates: Covariates, draws: Draws) -> Adds:
    """What the strict group adds to both probes' signed logits and margins, and the covariates.

    Probe a's too, because the group is a's: beyond b's logit alone the group would only tell what
    a reads of z.
    """
    logits = [readings.at(layer, probe) for probe in ("a", "b")]
    flipped = flips(readings.at(layer, "a"), readings.at(layer, "a", "knockout"))
    rows = ~np.isnan(flipped)
    columns = np.column_stack([*logits, *map(np.abs, logits), covariates.columns])
    drawn = {"seed": draws.seed, "resamples": draws.resamples}
    return adds(readings.z[rows], flipped[rows], columns[rows], readings.fold[rows], **drawn)
