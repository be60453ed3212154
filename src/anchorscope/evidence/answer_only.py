"""answer_only.csv and question_probe.csv: the answer-only effect, and question-only probes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from anchorscope.engine.interventions import ANSWER_ONLY, QUESTION_ONLY
from anchorscope.evidence.pieces import Part, Piece, PieceInputs, effect_rows
from anchorscope.probes.cross_fit import fold_logits
from anchorscope.probes.folds import MIN_PER_CLASS
from anchorscope.records import MODES
from anchorscope.run_folder.table_columns import EVIDENCE
from anchorscope.stats.ranking import auroc_interval


def answer_only_table(inputs: PieceInputs) -> pd.DataFrame:
    """One row per layer, mode, subset and pathway: effect of the answer-only pass."""
    parts = [effect_rows(inputs, ANSWER_ONLY.name, inputs.groups(mode)) for mode in MODES]
    table = pd.concat(parts)
    return table.reset_index(drop=True).reindex(columns=list(EVIDENCE["answer_only"]))


def question_probe_table(inputs: PieceInputs, layer: int) -> pd.DataFrame:
    """AUROC for z of a probe trained on question-only states: the row of one layer.

    A question without a state (NaN) is left out. Every question is read by a probe of the other
    folds, as the paper probes are trained.
    """
    config, readings = inputs.config, inputs.readings
    x = inputs.states[QUESTION_ONLY][:, layer - 1]
    finite = np.isfinite(x).all(axis=1)
    label = readings.z[finite]
    (score,) = fold_logits(
        x[finite],
        label[None].astype(float),
        readings.fold[finite],
        C=config.C,
        balance=config.balance,
        least=MIN_PER_CLASS,
    )
    read = ~np.isnan(score)
    area = auroc_interval(
        label[read],
        score[read],
        seed=config.seed,
        resamples=config.resamples,
        entity=inputs.entity[finite][read],
    )
    return inputs.table("question_probe", [(layer, *area)])


def _tables(inputs: PieceInputs) -> list[Part]:
    """One part for the effects of the answer-only pass, one per layer for the question probe."""
    parts: list[Part] = []
    if ANSWER_ONLY.name in inputs.readings.logits:
        parts.append(lambda: {"answer_only": answer_only_table(inputs)})
    if QUESTION_ONLY in inputs.states:
        parts += [
            lambda layer=layer: {"question_probe": question_probe_table(inputs, layer)}
            for layer in inputs.layers
        ]
    return parts


PIECE = Piece(tables=_tables, loads=(QUESTION_ONLY,))
