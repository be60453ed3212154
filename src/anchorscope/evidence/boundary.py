"""boundary.csv: accuracy, abstention and popularity by pathway, overall and within ŷ."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtr

from anchorscope.engine.passes import CLEAN, KNOCKOUT
from anchorscope.evidence.groups import PREDICTED, Subset, groups_of
from anchorscope.evidence.pieces import Part, Piece, PieceInputs, Tables
from anchorscope.pathways.effects import ROLES
from anchorscope.records import MODES, Mode
from anchorscope.stats.drawing import shared_entities
from anchorscope.stats.intervals import (
    Draws,
    Z,
    bootstrap_mean,
    difference,
    difference_of_means,
    p_of_interval,
    rate,
)
from anchorscope.stats.logistic import fit_logistic

TERMS = ("pathway", "logit", "margin", "popularity", "length")


class _Measure(NamedTuple):
    """One number of each sample, and whether it is a share (0 or 1)."""

    name: str
    values: np.ndarray  # [question], NaN where the measure does not apply to the sample
    share: bool


class _Group(NamedTuple):
    """The samples of one pathway that have a measure, [question] each."""

    values: np.ndarray
    entity: np.ndarray


def boundary_table(inputs: PieceInputs, mode: Mode, subset: Subset) -> pd.DataFrame:
    """The rows of a mode and subset: per layer, measure and pathway (Q, A, and Q less A with p).

    accuracy: share right of the answers judged right or wrong. abstention: share abstained of
    these and `inputs.abstained`, whose readings come from probes that never saw them; without it
    the measure is left out. popularity: mean log10 of the popularity where it is known.
    Shares have Wilson's interval, their difference Newcombe's and Fisher's exact test; popularity
    has bootstrap intervals and the Mann-Whitney test. Where questions share entities, the
    intervals are those of entities, and p is read from the difference's.
    """
    # The abstained come after the answered.
    parts = [inputs.readings, *([inputs.abstained] if inputs.abstained else [])]
    groups = [groups_of(part, mode, grouping=inputs.config.grouping) for part in parts]
    pathway = np.vstack([each.pathway for each in groups])
    member = np.vstack([each.subset(subset) for each in groups])
    entity = np.array([about for part in parts for about in part.entity_by_id.values()])
    rows = []
    for measure, layer in itertools.product(_measures(inputs), inputs.layers):
        if np.isnan(measure.values).all():
            continue
        here, own = member[:, layer - 1] & ~np.isnan(measure.values), pathway[:, layer - 1]
        q, a = (
            _Group(measure.values[here & (own == which)], entity[here & (own == which)])
            for which in ("Q", "A")
        )
        compared = _compared(q, a, measure.share, inputs.draws)
        rows += [(layer, mode, subset, measure.name, *row) for row in compared]
    return inputs.table("boundary", rows)


def _measures(inputs: PieceInputs) -> list[_Measure]:
    answered = len(inputs.readings.ids)
    abstained = 0 if inputs.abstained is None else len(inputs.abstained.ids)
    unknown = np.full(abstained, np.nan)
    measures = [_Measure("accuracy", np.r_[1.0 - inputs.readings.z, unknown], True)]
    if inputs.abstained is not None:
        declined = np.repeat([0.0, 1.0], [answered, abstained])
        measures.append(_Measure("abstention", declined, True))
    popularity = np.r_[inputs.covariates.log_popularity, unknown]
    return [*measures, _Measure("popularity", popularity, False)]


def _compared(q: _Group, a: _Group, share: bool, draws: Draws) -> list[tuple]:
    """Q, A and Q less A."""
    entity = np.r_[q.entity, a.entity]
    if share:
        one, other = (rate(group.values, entity=group.entity) for group in (q, a))
        gap, test = difference(one, other), _fisher
    else:
        one, other = (
            bootstrap_mean(
                group.values, seed=draws.seed, resamples=draws.resamples, entity=group.entity
            )
            for group in (q, a)
        )
        group = np.r_[np.ones(len(q.values)), np.zeros(len(a.values))]
        values = np.r_[q.values, a.values]
        gap, test = difference_of_means(values, group, draws, entity=entity), _mann_whitney
    # Fisher's and Mann and Whitney's tests take samples as independent of one another.
    alone = shared_entities(entity, len(entity)) is None
    p = test(q.values, a.values) if alone else p_of_interval(gap)
    rows = (("Q", one, np.nan), ("A", other, np.nan), ("Q-A", gap, p))
    return [(name, e.n, *e[:3], value) for name, e, value in rows]


def _fisher(q: np.ndarray, a: np.ndarray) -> float:
    from scipy.stats import fisher_exact  # slow to import: for the processes that come to it

    if not (len(q) and len(a)):
        return np.nan
    cells = [[int(group.sum()), len(group) - int(group.sum())] for group in (q, a)]
    return float(fisher_exact(cells).pvalue)  # type: ignore[union-attr]


def _mann_whitney(q: np.ndarray, a: np.ndarray) -> float:
    from scipy.stats import mannwhitneyu  # as above

    return float(mannwhitneyu(q, a).pvalue) if len(q) and len(a) else np.nan


def boundary_model_table(inputs: PieceInputs) -> pd.DataFrame:
    """One row per layer, mode and term of a logistic model of being right, Wald intervals.

    Terms: pathway (Q against A), signed clean logit and its size (margin), each the mean of the
    group's and the effect's probe (their difference is in the model, without rows), and the
    covariates, popularity and length. Coefficients are per spread of the term. Where popularity is
    unknown for some, a marker takes its place; a term without spread, or a model that the terms
    separate, has NaN.
    """
    readings, covariates, rows = inputs.readings, inputs.covariates, []
    for mode in MODES:
        groups = groups_of(readings, mode, grouping=inputs.config.grouping)
        for k, layer in enumerate(inputs.layers):
            used = groups.of("all")[:, k]
            logit, grouped = (
                readings.of(probe)[used, k] for probe in (ROLES[mode].effect, ROLES[mode].group)
            )
            margin, margin_grouped = np.abs(logit), np.abs(grouped)
            columns = {
                "pathway": groups.of("Q")[used, k].astype(float),
                "logit": (logit + grouped) / 2,
                "margin": (margin + margin_grouped) / 2,
                "popularity": covariates.log_popularity[used],
                "length": covariates.prompt_length[used],
            }
            if ROLES[mode].group != ROLES[mode].effect:
                # The group is another probe's: what that probe reads of z is not the pathway's.
                columns |= {
                    "logits apart": logit - grouped,
                    "margins apart": margin - margin_grouped,
                }
            terms = _wald(columns, readings.z[used] == 0)
            rows += [(layer, mode, term, *terms[term], int(used.sum())) for term in TERMS]
    return inputs.table("boundary_model", rows)


def _wald(columns: Mapping[str, np.ndarray], right: np.ndarray) -> dict[str, tuple]:
    """Coefficient, interval and p of each term; NaN where the model has none."""
    design = _design(columns, right)
    terms: dict[str, tuple] = dict.fromkeys(columns, (np.nan,) * 4)
    fitted = fit_logistic(np.column_stack([np.empty((len(right), 0)), *design.values()]), right)
    if fitted is not None:
        for place, term in enumerate(design, start=1):
            value, error = float(fitted[0][place]), float(fitted[1][place])
            p = float(2 * ndtr(-abs(value) / error))
            terms[term] = (value, value - Z * error, value + Z * error, p)
    return terms


def _design(columns: Mapping[str, np.ndarray], right: np.ndarray) -> dict[str, np.ndarray]:
    """The standardised columns that have spread; a marker where one has gaps.

    A marker of answers that are all right or all wrong would separate them, and take every other
    term down with it: then the gaps are filled with the mean and not marked.
    """
    design: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        finite = ~np.isnan(column)
        if finite.sum() < 2 or not np.ptp(column[finite]) > 0:
            continue
        middle, spread = column[finite].mean(), column[finite].std()
        design[name] = np.where(finite, (column - middle) / spread, 0.0)
        if len(np.unique(right[~finite])) == 2:
            design[f"{name} unknown"] = (~finite - (~finite).mean()) / (~finite).std()
    return design


def _parts(inputs: PieceInputs) -> list[Part]:
    """The comparisons of each mode and predicted class, and the model of all terms."""
    own = inputs.trimmed(passes=(CLEAN.name, KNOCKOUT.name), abstained=True)
    pairs = itertools.product(MODES, PREDICTED)
    return [partial(_compared_in, own, *pair) for pair in pairs] + [partial(_model, own)]


def _compared_in(inputs: PieceInputs, mode: Mode, subset: Subset) -> Tables:
    return {"boundary": boundary_table(inputs, mode, subset)}


def _model(inputs: PieceInputs) -> Tables:
    return {"boundary_model": boundary_model_table(inputs)}


PIECE = Piece(parts=_parts, needs_abstained=True)
