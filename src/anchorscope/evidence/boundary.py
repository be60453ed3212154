"""boundary.csv: accuracy, abstention and popularity by pathway, overall and within ŷ."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.special import ndtr

from anchorscope.evidence.pieces import PREDICTED, Part, Piece, PieceInputs, Subset
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
    groups = [inputs.groups(mode, part) for part in parts]
    pathway = np.vstack([each.pathway for each in groups])
    member = np.vstack([each.subset(subset) for each in groups])
    entity = np.array([about for part in parts for about in part.entity_by_id.values()])
    rows = []
    for (name, values), layer in itertools.product(_measures(inputs).items(), inputs.layers):
        used, own = member[:, layer - 1] & ~np.isnan(values), pathway[:, layer - 1]
        both = used & ((own == "Q") | (own == "A"))
        share, of_both = name != "popularity", (values[both], own[both] == "Q", entity[both])
        compared = _compared(*of_both, share=share, draws=inputs.draws)
        rows += [(layer, mode, subset, name, *row) for row in compared]
    return inputs.table("boundary", rows)


def _measures(inputs: PieceInputs) -> dict[str, np.ndarray]:
    """Each measure by name, [question]: the answered, then the abstained; NaN where unknown."""
    answered = len(inputs.readings.ids)
    abstained = 0 if inputs.abstained is None else len(inputs.abstained.ids)
    unknown = np.full(abstained, np.nan)
    measures = {"accuracy": np.r_[1.0 - inputs.readings.z, unknown]}
    if inputs.abstained is not None:
        measures["abstention"] = np.repeat([0.0, 1.0], [answered, abstained])
    measures["popularity"] = np.r_[inputs.covariates.log_popularity, unknown]
    return {name: values for name, values in measures.items() if not np.isnan(values).all()}


def _compared(
    values: np.ndarray, is_q: np.ndarray, entity: np.ndarray, *, share: bool, draws: Draws
) -> list[tuple]:
    """Rows of Q, A and their difference; with `share`, values are 0 or 1."""
    from scipy.stats import fisher_exact, mannwhitneyu  # slow to import: for the processes here

    sides = [values[is_q], values[~is_q]]
    options: dict[str, int] = {"seed": draws.seed, "resamples": draws.resamples}
    if share:
        one, other = (rate(values[side], entity=entity[side]) for side in (is_q, ~is_q))
        gap = difference(one, other)
    else:
        one, other = (
            bootstrap_mean(values[side], entity=entity[side], **options) for side in (is_q, ~is_q)
        )
        gap = difference_of_means(values, is_q.astype(float), draws, entity=entity)
    p = np.nan
    # Fisher's and Mann and Whitney's tests take samples as independent of one another.
    if shared_entities(entity, len(entity)) is not None:
        p = p_of_interval(gap)
    elif all(map(len, sides)) and share:
        cells = [[int(group.sum()), len(group) - int(group.sum())] for group in sides]
        p = float(fisher_exact(cells).pvalue)  # type: ignore[union-attr]
    elif all(map(len, sides)):
        p = float(mannwhitneyu(sides[0], sides[1]).pvalue)
    rows = (("Q", one, np.nan), ("A", other, np.nan), ("Q-A", gap, p))
    return [(name, e.n, *e[:3], value) for name, e, value in rows]


def boundary_model_table(inputs: PieceInputs) -> pd.DataFrame:
    """One row per layer, mode and term of a logistic model of being right, Wald intervals.

    Terms: pathway (Q against A), signed clean logit and its size (margin), each the mean of the
    group's and the effect's probe (their difference is in the model, without rows), and the
    covariates, popularity and length. Coefficients are per standard deviation of the term. Where
    popularity is unknown for some, a marker takes its place; a term without spread, or a model that
    the terms separate, has NaN.
    """
    readings, covariates, rows = inputs.readings, inputs.covariates, []
    for mode in MODES:
        groups, roles = inputs.groups(mode), ROLES[mode]
        for k, layer in enumerate(inputs.layers):
            used = groups.member("all")[:, k]
            logit, grouped = (readings.of(p)[used, k] for p in (roles.effect, roles.group))
            columns = {
                "pathway": groups.member("Q")[used, k].astype(float),
                "logit": (logit + grouped) / 2,
                "margin": (np.abs(logit) + np.abs(grouped)) / 2,
                "popularity": covariates.log_popularity[used],
                "length": covariates.prompt_length[used],
            }
            if roles.group != roles.effect:
                # The group is another probe's: what that probe reads of z is not the pathway's.
                columns["logits apart"] = logit - grouped
                columns["margins apart"] = np.abs(logit) - np.abs(grouped)
            terms = _wald(columns, readings.z[used] == 0)
            rows += [(layer, mode, term, *terms[term], int(used.sum())) for term in TERMS]
    return inputs.table("boundary_model", rows)


def _wald(columns: Mapping[str, np.ndarray], right: np.ndarray) -> dict[str, tuple]:
    """Coefficient, interval and p of each term, standardised; NaN where the model has none.

    A column with gaps gets a marker of them beside it, unless the answers in the gaps are all right
    or all wrong: such a marker would separate them, and every other term would be NaN.
    """
    terms: dict[str, tuple] = dict.fromkeys(columns, (np.nan,) * 4)
    design: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        known = ~np.isnan(column)
        if known.sum() < 2 or not np.ptp(column[known]) > 0:
            continue
        middle, spread = column[known].mean(), column[known].std()
        design[name] = np.where(known, (column - middle) / spread, 0.0)
        if len(np.unique(right[~known])) == 2:
            design[f"{name} unknown"] = (~known - (~known).mean()) / (~known).std()
    fitted = fit_logistic(np.column_stack(list(design.values())), right) if design else None
    if fitted is not None:
        for term, value, error in zip(design, *(part[1:].tolist() for part in fitted), strict=True):
            p = float(2 * ndtr(-abs(value) / error))
            terms[term] = (value, value - Z * error, value + Z * error, p)
    return terms


def _tables(inputs: PieceInputs) -> list[Part]:
    """The comparisons of each mode and predicted class, and the model of all terms."""
    return [
        *(
            lambda pair=pair: {"boundary": boundary_table(inputs, *pair)}
            for pair in itertools.product(MODES, PREDICTED)
        ),
        lambda: {"boundary_model": boundary_model_table(inputs)},
    ]


PIECE = Piece(tables=_tables, needs_abstained=True)
