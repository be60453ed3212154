"""Knowledge boundary: accuracy, abstention and popularity by pathway, overall and within ŷ."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtr

from anchorscope.evidence.groups import PREDICTED, Subset, groups_of
from anchorscope.evidence.pieces import Part, Piece, PieceInputs, Tables
from anchorscope.pathways.grouping import ROLES
from anchorscope.probes.labelled import Covariates
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Mode
from anchorscope.run_folder import table_columns
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


@dataclass(frozen=True, kw_only=True)
class _Measure:
    """One number of each sample, [question], and whether it is a share (0 or 1)."""

    name: str
    values: np.ndarray  # NaN where the measure does not speak of the sample
    share: bool


def boundary_table(
    readings: Readings,
    *,
    popularity: np.ndarray,
    model: str,
    dataset: str,
    abstained: Readings | None = None,
    grouping: str = "per-layer",
    modes: Sequence[Mode] = MODES,
    subsets: Sequence[Subset] = PREDICTED,
    seed: int = 0,
    resamples: int = 1000,
) -> pd.DataFrame:
    """One row per layer, mode, subset, measure and pathway (Q, A, and Q less A with its p).

    accuracy: share right of the answers judged right or wrong. abstention: share abstained of
    these and `abstained`, whose readings come from probes that never saw them; without it the
    measure is left out. popularity: mean log10 of `popularity` [question] (log10, NaN: unknown).
    Shares have Wilson's interval, their difference Newcombe's and Fisher's exact test; popularity
    has bootstrap intervals and the Mann-Whitney test. Where questions share entities, the
    intervals are those of entities, and p is read from the difference's.
    """
    entity = _entities(readings, abstained)
    measures = _measures(readings, popularity, abstained)
    draws = Draws(seed=seed, resamples=resamples)
    rows = []
    for mode in modes:
        pathway, members = _groups(readings, abstained, mode, grouping)
        for name, measure, layer in itertools.product(subsets, measures, readings.layer_numbers):
            k = layer - 1
            here = members[name][:, k] & ~np.isnan(measure.values)
            if not here.any() and measure.name == "popularity" and np.isnan(popularity).all():
                continue
            q, a = (
                _Group(measure.values[mine], entity[mine])
                for mine in (here & (pathway[:, k] == which) for which in ("Q", "A"))
            )
            rows += [(model, dataset, layer, mode, name, measure.name, *row)
                     for row in _compared(q, a, measure.share, draws)]  # fmt: skip
    return pd.DataFrame(rows, columns=list(table_columns.EVIDENCE["boundary"]))


class _Group(NamedTuple):
    """The samples of one pathway that a measure speaks of, [question] each."""

    values: np.ndarray
    entity: np.ndarray


def _entities(readings: Readings, abstained: Readings | None) -> np.ndarray:
    """The entity of each sample, the abstained after the answered."""
    parts = (readings, abstained) if abstained else (readings,)
    return np.array([about for part in parts for about in part.entity_by_id.values()])


def _measures(
    readings: Readings, popularity: np.ndarray, abstained: Readings | None
) -> list[_Measure]:
    nothing = np.full(0 if abstained is None else len(abstained.ids), np.nan)
    measures = [
        _Measure(name="accuracy", values=np.r_[1.0 - readings.z, nothing], share=True),
        _Measure(name="popularity", values=np.r_[popularity, nothing], share=False),
    ]
    if abstained is not None:
        said = np.r_[np.zeros(len(readings.ids)), np.ones(len(abstained.ids))]
        measures.insert(1, _Measure(name="abstention", values=said, share=True))
    return measures


def _groups(
    readings: Readings, abstained: Readings | None, mode: Mode, grouping: str
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Pathways [sample, layer] and predicted classes, the abstained after the answered."""
    parts = [readings] if abstained is None else [readings, abstained]
    groups = [groups_of(part, mode, grouping=grouping) for part in parts]
    subsets = {str(n): np.vstack([g.subset(n) for g in groups]) for n in PREDICTED}
    return np.vstack([g.pathway for g in groups]), subsets


def _compared(q: _Group, a: _Group, share: bool, draws: Draws) -> list[tuple]:
    """Q, A and Q less A."""
    entity = np.r_[q.entity, a.entity]
    if share:
        one, other = (rate(of.values, entity=of.entity) for of in (q, a))
        gap, test = difference(one, other), _fisher
    else:
        drawn = {"seed": draws.seed, "resamples": draws.resamples}
        one, other = (bootstrap_mean(of.values, **drawn, entity=of.entity) for of in (q, a))
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
    cells = [[int(of.sum()), len(of) - int(of.sum())] for of in (q, a)]
    return float(fisher_exact(cells).pvalue)  # type: ignore[union-attr]


def _mann_whitney(q: np.ndarray, a: np.ndarray) -> float:
    from scipy.stats import mannwhitneyu  # as above

    return float(mannwhitneyu(q, a).pvalue) if len(q) and len(a) else np.nan


def boundary_model_table(
    readings: Readings,
    *,
    covariates: Covariates,
    model: str,
    dataset: str,
    grouping: str = "per-layer",
) -> pd.DataFrame:
    """One row per layer, mode and term of a logistic model of being right, Wald intervals.

    Terms: pathway (Q against A), signed clean logit and its size (margin), each the mean of the
    group's and the effect's probe (what lies between the two is in the model, without rows), and
    the covariates, popularity and length. Coefficients are per spread of the
    term. Where popularity is unknown for some, a marker stands for that; a term without spread,
    or a model that the terms separate, has NaN.
    """
    rows = []
    for mode in MODES:
        groups, logits = groups_of(readings, mode, grouping=grouping), readings.of(ROLES[mode][1])
        for k, layer in enumerate(readings.layer_numbers):
            used = groups.of("all")[:, k]
            logit, grouped = logits[used, k], readings.of(ROLES[mode].group)[used, k]
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
            rows += [(model, dataset, layer, mode, term, *terms[term], int(used.sum()))
                     for term in TERMS]  # fmt: skip
    return pd.DataFrame(rows, columns=list(table_columns.EVIDENCE["boundary_model"]))


def _wald(columns: Mapping[str, np.ndarray], right: np.ndarray) -> dict[str, tuple]:
    """Coefficient, interval and p of each term."""
    design = _design(columns, right)
    missing = (np.nan,) * 4
    x = np.column_stack([np.empty((len(right), 0)), *design.values()])
    fitted = fit_logistic(x, right)
    if fitted is None:
        return dict.fromkeys(columns, missing)
    out: dict[str, tuple] = dict.fromkeys(columns, missing)
    for place, term in enumerate(design, start=1):
        value, error = float(fitted[0][place]), float(fitted[1][place])
        p = float(2 * ndtr(-abs(value) / error))
        out[term] = (value, value - Z * error, value + Z * error, p)
    return {term: out[term] for term in columns}


def _design(columns: Mapping[str, np.ndarray], right: np.ndarray) -> dict[str, np.ndarray]:
    """The standardised columns that have spread; a marker where one has gaps.

    A marker of answers that are all right or all wrong would separate them, and take every other
    term down with it: then the gaps stand at the mean and are not marked.
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
    logits = {name: inputs.readings.logits[name] for name in ("clean", "knockout")}
    readings = replace(inputs.readings, logits=logits)
    inputs = replace(inputs, readings=readings, states={}, rows={})
    pairs = itertools.product(MODES, PREDICTED)
    return [partial(_compared_in, inputs, *pair) for pair in pairs] + [partial(_model, inputs)]


def _compared_in(inputs: PieceInputs, mode: Mode, subset: Subset) -> Tables:
    table = boundary_table(
        inputs.readings,
        popularity=inputs.covariates.log_popularity,
        abstained=inputs.abstained,
        modes=[mode],
        subsets=[subset],
        seed=inputs.config.seed,
        resamples=inputs.config.resamples,
        **inputs.names,
    )
    return {"boundary": table}


def _model(inputs: PieceInputs) -> Tables:
    table = boundary_model_table(inputs.readings, covariates=inputs.covariates, **inputs.names)
    return {"boundary_model": table}


PIECE = Piece(parts=_parts, needs_abstained=True)
