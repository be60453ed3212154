"""boundary.csv: accuracy, abstention and popularity by pathway, overall and within ŷ."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtr

from anchorscope.engine.passes import CLEAN, KNOCKOUT
from anchorscope.evidence.pieces import PREDICTED, Part, Piece, PieceInputs, Subset, groups_of
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
        used, own = member[:, layer - 1] & ~np.isnan(measure.values), pathway[:, layer - 1]
        both = used & ((own == "Q") | (own == "A"))
        compared = _compared(measure, own == "Q", both, entity, inputs.draws)
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


def _compared(
    measure: _Measure, is_q: np.ndarray, both: np.ndarray, entity: np.ndarray, draws: Draws
) -> list[tuple]:
    """Q, A and Q less A among the questions `both`, [question] bool."""
    from scipy.stats import fisher_exact, mannwhitneyu  # slow to import: for the processes here

    values, about, side = measure.values[both], entity[both], is_q[both]
    q, a = values[side], values[~side]
    if measure.share:
        one, other = (rate(values[group], entity=about[group]) for group in (side, ~side))
        gap = difference(one, other)
    else:
        one, other = (
            bootstrap_mean(
                values[group], seed=draws.seed, resamples=draws.resamples, entity=about[group]
            )
            for group in (side, ~side)
        )
        gap = difference_of_means(values, side.astype(float), draws, entity=about)
    # Fisher's and Mann and Whitney's tests take samples as independent of one another.
    if shared_entities(about, len(about)) is not None:
        p = p_of_interval(gap)
    elif not (len(q) and len(a)):
        p = np.nan
    elif measure.share:
        cells = [[int(group.sum()), len(group) - int(group.sum())] for group in (q, a)]
        p = float(fisher_exact(cells).pvalue)  # type: ignore[union-attr]
    else:
        p = float(mannwhitneyu(q, a).pvalue)
    rows = (("Q", one, np.nan), ("A", other, np.nan), ("Q-A", gap, p))
    return [(name, e.n, *e[:3], value) for name, e, value in rows]


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
            used = groups.member("all")[:, k]
            logit, grouped = (
                readings.of(probe)[used, k] for probe in (ROLES[mode].effect, ROLES[mode].group)
            )
            margin, margin_grouped = np.abs(logit), np.abs(grouped)
            columns = {
                "pathway": groups.member("Q")[used, k].astype(float),
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
    return [
        *(
            lambda pair=pair: {"boundary": boundary_table(own, *pair)}
            for pair in itertools.product(MODES, PREDICTED)
        ),
        lambda: {"boundary_model": boundary_model_table(own)},
    ]


PIECE = Piece(parts=_parts, needs_abstained=True)
