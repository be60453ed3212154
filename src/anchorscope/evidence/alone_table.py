"""answer_only.csv and question_probe.csv: the answer without its question, and the reverse."""

from __future__ import annotations

import numpy as np
import pandas as pd

from anchorscope.evidence.effect_rows import Draws, effect_rows
from anchorscope.evidence.groups import groups_of
from anchorscope.pathways.grouping import MODES
from anchorscope.probes.each import each
from anchorscope.probes.metrics import auroc_interval
from anchorscope.probes.probe import DEFAULT_C, Balance, LinearProbe
from anchorscope.probes.readings import Readings
from anchorscope.probes.splits import MIN_PER_CLASS, training_rows
from anchorscope.records import Estimate

ANSWER_ONLY_COLUMNS = (
    "model", "dataset", "layer", "mode", "subset", "pathway", "n",
    "delta_p", "delta_p_low", "delta_p_high",
    "delta_logit", "delta_logit_low", "delta_logit_high",
)  # fmt: skip
QUESTION_PROBE_COLUMNS = (
    "model", "dataset", "layer", "auroc", "auroc_low", "auroc_high", "n",
)  # fmt: skip


def answer_only_table(
    readings: Readings,
    *,
    model: str,
    dataset: str,
    grouping: str = "per-layer",
    draws: Draws | None = None,
) -> pd.DataFrame:
    """One row per layer, mode, subset and pathway: effect of a pass that never saw the question."""
    frames = [
        effect_rows(
            readings, "answer-only", groups_of(readings, mode, grouping=grouping), draws=draws
        )
        for mode in MODES
    ]
    table = pd.concat(frames, ignore_index=True).assign(model=model, dataset=dataset)
    return table.reindex(columns=list(ANSWER_ONLY_COLUMNS))


def question_probe_table(
    states: np.ndarray,
    *,
    z: np.ndarray,
    fold: np.ndarray,
    model: str,
    dataset: str,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    seed: int = 0,
    resamples: int = 1000,
    workers: int | None = None,
) -> pd.DataFrame:
    """One row per layer: AUROC for z of a probe trained on question-only states.

    `states` [question, layer, width]; a question without one (NaN) is left out. Every question is
    read by a probe of the other folds, as the paper probes are trained.
    """

    def work(layer: int) -> Estimate:
        x = np.asarray(states[:, layer], dtype=np.float64)
        score = _held_out(x, z, fold, LinearProbe(C=C, balance=balance))
        known = ~np.isnan(score)
        return auroc_interval(z[known], score[known], seed=seed, resamples=resamples)

    found = each(work, range(states.shape[1]), workers=workers)
    rows = [(model, dataset, layer, *of) for layer, of in enumerate(found, start=1)]
    return pd.DataFrame(rows, columns=list(QUESTION_PROBE_COLUMNS))


def _held_out(x: np.ndarray, z: np.ndarray, fold: np.ndarray, probe: LinearProbe) -> np.ndarray:
    """The logit of each question from the other folds; NaN without a state or enough to learn."""
    there = np.isfinite(x).all(axis=1)
    logit = np.full(len(x), np.nan)
    for held_out in np.unique(fold):
        learn = training_rows(fold, held_out=int(held_out), probe="paper") & there
        rows = (fold == held_out) & there
        enough = min(np.sum(z[learn] == 0), np.sum(z[learn] == 1)) >= MIN_PER_CLASS
        if enough and rows.any():
            logit[rows] = probe.fit(x[learn], z[learn]).decision_function(x[rows])
    return logit
