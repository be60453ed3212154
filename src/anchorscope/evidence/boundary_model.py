"""boundary_model.csv: does the pathway still go with being right, beside simpler things?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import norm

from anchorscope.evidence.groups import groups_of
from anchorscope.evidence.logistic import fit_logistic
from anchorscope.pathways.grouping import MODES, ROLES
from anchorscope.probes.readings import Readings

COLUMNS = (
    "model", "dataset", "layer", "mode", "term", "coefficient", "low", "high", "p", "n",
)  # fmt: skip
TERMS = ("pathway", "logit", "margin", "popularity", "length")
_Z95 = 1.959963984540054


def boundary_model_table(
    readings: Readings,
    *,
    known: np.ndarray,
    model: str,
    dataset: str,
    grouping: str = "per-layer",
) -> pd.DataFrame:
    """One row per layer, mode and term of a logistic model of being right, Wald intervals.

    Terms: pathway (Q against A), signed clean logit and its size (margin) from the effect's probe,
    and `known` [question, 2]: log10 popularity and length. Coefficients are per spread of the
    term. Where popularity is unknown for some, a marker stands for that; a term without spread,
    or a model that the terms separate, has NaN.
    """
    rows = []
    for mode in MODES:
        groups, logits = groups_of(readings, mode, grouping=grouping), readings.of(ROLES[mode][1])
        for layer in range(readings.layers):
            used = groups.of("all")[:, layer]
            logit = logits[used, layer]
            columns = {
                "pathway": groups.of("Q")[used, layer].astype(float),
                "logit": logit,
                "margin": np.abs(logit),
                "popularity": known[used, 0],
                "length": known[used, 1],
            }
            found = _wald(columns, readings.z[used] == 0)
            rows += [(model, dataset, layer + 1, mode, term, *found[term], int(used.sum()))
                     for term in TERMS]  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


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
        p = float(2 * norm.sf(abs(value) / error))
        out[term] = (value, value - _Z95 * error, value + _Z95 * error, p)
    return {term: out[term] for term in columns}


def _design(columns: Mapping[str, np.ndarray], right: np.ndarray) -> dict[str, np.ndarray]:
    """The standardised columns that have spread; a marker where one has gaps.

    A marker of answers that are all right or all wrong would separate them, and take every other
    term down with it: then the gaps stand at the mean and are not marked.
    """
    design: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        known = ~np.isnan(column)
        if known.sum() < 2 or not np.ptp(column[known]) > 0:
            continue
        middle, spread = column[known].mean(), column[known].std()
        design[name] = np.where(known, (column - middle) / spread, 0.0)
        if len(np.unique(right[~known])) == 2:
            design[f"{name} unknown"] = (~known - (~known).mean()) / (~known).std()
    return design
