"""answer_only.csv and question_probe.csv: the answer without its question, and the reverse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.config import Balance
from anchorscope.engine.passes import ANSWER_ONLY, QUESTION_ONLY
from anchorscope.evidence.groups import effect_rows, groups_of
from anchorscope.evidence.pieces import Part, Piece, PieceInputs, Tables
from anchorscope.parallel import in_parallel
from anchorscope.pathways.effects import Delta
from anchorscope.probes.at_once import fits_of_layers
from anchorscope.probes.fold_probes import fit_fold_probes, label_tasks, task_request
from anchorscope.probes.folds import MIN_PER_CLASS
from anchorscope.probes.many_fits import DEFAULT_C, Made, Request
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Estimate
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.states import StoredStates
from anchorscope.stats.intervals import Draws
from anchorscope.stats.ranking import auroc_interval
from anchorscope.stats.whole_rows import finite_rows


def answer_only_table(
    readings: Readings,
    *,
    model: str,
    dataset: str,
    grouping: str = "per-layer",
    unit: Delta = "points",
    draws: Draws | None = None,
) -> pd.DataFrame:
    """One row per layer, mode, subset and pathway: effect of a pass that never saw the question."""
    frames = [
        effect_rows(
            readings,
            "answer-only",
            groups_of(readings, mode, grouping=grouping),
            unit=unit,
            draws=draws,
        )
        for mode in MODES
    ]
    table = pd.concat(frames, ignore_index=True).assign(model=model, dataset=dataset)
    return table.reindex(columns=list(table_columns.EVIDENCE["answer_only"]))


def question_probe_table(
    states: np.ndarray | StoredStates,
    *,
    z: np.ndarray,
    fold: np.ndarray,
    model: str,
    dataset: str,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    seed: int = 0,
    resamples: int = 1000,
    layers: Sequence[int] | None = None,
    workers: int | None = None,
    entity: np.ndarray | None = None,
    fits: Mapping[int, Made | None] | None = None,
) -> pd.DataFrame:
    """One row per layer: AUROC for z of a probe trained on question-only states.

    `states` [question, layer, width]; a question without one (NaN) is left out. Every question is
    read by a probe of the other folds, as the paper probes are trained. With `entity` [question]
    entities are drawn for the intervals. `layers` (from 1; all without it) are those asked for.
    `fits` are those of some layers' probes, where somebody has made them already.
    """
    about = np.arange(len(z)) if entity is None else entity

    def work(layer: int) -> Estimate:
        x = states[:, layer - 1]
        whole = finite_rows(x)
        x, label = x[whole], z[whole]
        how = {"C": C, "balance": balance, "least": MIN_PER_CLASS, "fits": (fits or {}).get(layer)}
        probes = fit_fold_probes(x, label, fold[whole], **how)
        score = probes.logits(x)
        read = ~np.isnan(score)
        drawn = {"seed": seed, "resamples": resamples, "entity": about[whole][read]}
        return auroc_interval(label[read], score[read], **drawn)

    depth = states.layers if isinstance(states, StoredStates) else states.shape[1]
    layers = layers or range(1, depth + 1)
    areas = in_parallel(work, layers, workers=workers)
    rows = [(model, dataset, layer, *of) for layer, of in zip(layers, areas, strict=True)]
    return pd.DataFrame(rows, columns=list(table_columns.EVIDENCE["question_probe"]))


def _parts(inputs: PieceInputs) -> list[Part]:
    """The effects of the pass at once, and the question's own probe layer by layer."""
    parts: list[Part] = []
    if ANSWER_ONLY.name in inputs.readings.logits:
        parts.append(partial(_effects, replace(inputs, states={}, abstained=None, rows={})))
    if QUESTION_ONLY in inputs.states:
        how = {
            "z": inputs.readings.z,
            "fold": inputs.readings.fold,
            "model": inputs.model,
            "dataset": inputs.dataset,
            "C": inputs.config.C,
            "balance": inputs.config.balance,
            "seed": inputs.config.seed,
            "resamples": inputs.config.resamples,
            "entity": inputs.readings.entity,
        }
        states = inputs.states[QUESTION_ONLY]
        fits = fits_of_layers(partial(_request, inputs), inputs.layers)
        parts += [
            partial(_question_probe, states, [layer], fits={layer: fits.get(layer)}, **how)
            for layer in inputs.layers
        ]
    return parts


def _request(inputs: PieceInputs, layer: int) -> tuple[np.ndarray, Request | None]:
    """The question-only states of a layer, and the fits of its probes."""
    x, readings, how = inputs.states[QUESTION_ONLY][:, layer - 1], inputs.readings, inputs.config
    whole = finite_rows(x)
    tasks = label_tasks(readings.z[None, whole], readings.fold[whole], C=how.C)
    request = task_request(tasks, int(whole.sum()), balance=how.balance, least=MIN_PER_CLASS)
    return x[whole], request


def _effects(inputs: PieceInputs) -> Tables:
    options = {"unit": inputs.unit, "draws": inputs.draws}
    return {"answer_only": answer_only_table(inputs.readings, **inputs.names, **options)}


def _question_probe(states: np.ndarray | StoredStates, layers: Sequence[int], **how: Any) -> Tables:
    return {"question_probe": question_probe_table(states, layers=layers, workers=1, **how)}


PIECE = Piece(parts=_parts, loads=(QUESTION_ONLY,))
