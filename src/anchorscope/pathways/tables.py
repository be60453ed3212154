"""The tables of a run; their columns, in this order, are a contract with every reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, get_args

import numpy as np
import pandas as pd

from anchorscope.config import Delta
from anchorscope.errors import unknown
from anchorscope.pathways.effects import ROLES, delta_p, flips, pathways, prediction, regroup
from anchorscope.probes.folds import training_rows
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Estimate, Mode, Pathway
from anchorscope.run_folder import table_columns
from anchorscope.stats.intervals import bootstrap_mean, rate
from anchorscope.stats.ranking import accuracy, auroc_interval

PATHWAYS: tuple[Pathway, ...] = get_args(Pathway)
CONTROLS = (
    "knockout", "neutral", "content", "question", "answer-only", "retest", "retest-knockout",
)  # fmt: skip


def pathways_table(
    readings: Readings,
    *,
    dataset: str,
    modes: tuple[Mode, ...] = MODES,
    grouping: str = "per-layer",
) -> pd.DataFrame:
    """One row per question, layer and mode: table_columns.PATHWAYS.

    `prediction` and the logits are those of the effect's probe, `pathway` that of the group's.
    """
    questions, layers = len(readings.ids), readings.layers
    frames = []
    for mode in modes:
        if mode not in MODES:
            raise unknown("mode", mode, MODES)
        roles = ROLES[mode]
        clean = readings.of(roles.effect)
        columns = {
            "id": np.repeat(np.array(readings.ids, dtype=object), layers),
            "dataset": dataset,
            "layer": np.tile(np.arange(1, layers + 1), questions),
            "mode": mode,
            "z": np.repeat(readings.z, layers),
            "prediction": prediction(clean).astype(np.int64).ravel(),
            "logit_clean": clean.ravel(),
            "logit_knockout": readings.of(roles.effect, "knockout").ravel(),
            "pathway": regroup(pathways(readings, probe=roles.group), grouping).ravel(),
        }
        frames.append(pd.DataFrame(columns, columns=list(table_columns.PATHWAYS)))
    return pd.concat(frames, ignore_index=True)


def layers_table(
    samples: pd.DataFrame,
    *,
    model: str,
    delta: Delta = "points",
    seed: int = 0,
    resamples: int = 1000,
    entity_by_id: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """One row per dataset, mode, layer and pathway, from the rows of `pathways_table`.

    Entities are drawn for the intervals, by question id; without them questions are.

    `delta_p` is in points, or relative where `delta` says so; under "logit" it stays in points,
    because `delta_logit` is beside it in any case. An empty group has n = 0 and NaN.
    """
    unit = _unit(delta)
    rows = []
    for key, at in samples.groupby(["dataset", "mode", "layer"], sort=False):
        dataset, mode, layer = cast("tuple[str, str, int]", key)
        for pathway in PATHWAYS:
            mine = at.loc[at["pathway"] == pathway]
            clean, other = (mine[f"logit_{name}"].to_numpy() for name in ("clean", "knockout"))
            entity = None
            if entity_by_id is not None:
                entity = np.array([entity_by_id[id] for id in mine["id"]], dtype=str)
            points, logits = (
                bootstrap_mean(
                    delta_p(clean, other, delta=each),
                    seed=seed,
                    resamples=resamples,
                    entity=entity,
                )
                for each in (unit, "logit")
            )
            rows.append((model, dataset, layer, mode, pathway, points.n, *points[:3], *logits[:3]))
    return pd.DataFrame(rows, columns=list(table_columns.LAYERS))


def probes_table(
    readings: Readings, *, model: str, dataset: str, seed: int = 0, resamples: int = 1000
) -> pd.DataFrame:
    """One row per layer: how well the paper probe tells wrong from right where it never looked.

    All folds are scored together, as a detector would meet them. `n_train` is the smallest
    training part of any fold, `n_test` the questions scored.
    """
    folds = range(int(readings.fold.max()) + 1)
    n_train = min(
        int(training_rows(readings.fold, held_out=fold, probe="paper").sum()) for fold in folds
    )
    rows = []
    for layer, logit in enumerate(readings.of("paper").T, start=1):
        area = auroc_interval(
            readings.z, logit, seed=seed, resamples=resamples, entity=readings.entity
        )
        right = accuracy(readings.z, logit)
        rows.append((model, dataset, layer, *area[:3], right, n_train, area.n))
    return pd.DataFrame(rows, columns=list(table_columns.PROBES))


def controls_table(
    readings: Readings, *, model: str, dataset: str, delta: Delta = "points"
) -> pd.DataFrame:
    """One row per layer and intervention: flips and mean ΔP of the paper probe, all samples.

    `flip_rate` is a share from 0 to 1; `delta_p` is in the same unit as in `layers_table`.
    """
    unit = _unit(delta)
    controls = [name for name in CONTROLS if name in readings.logits]
    others = [name for name in readings.logits if name not in (*CONTROLS, "clean")]
    rows = []
    for name in [*controls, *others]:
        for layer in range(readings.layers):
            clean, other = readings.of("paper")[:, layer], readings.of("paper", name)[:, layer]
            seen = ~np.isnan(other)
            entity = None if readings.entity is None else readings.entity[seen]
            flipped = rate(flips(clean[seen], other[seen]), entity=entity)
            effect = delta_p(clean[seen], other[seen], delta=unit)
            mean = float(effect.mean()) if len(effect) else np.nan
            rows.append((model, dataset, layer + 1, name, *flipped[:3], mean, flipped.n))
    return pd.DataFrame(rows, columns=list(table_columns.CONTROLS))


def estimate_columns(name: str, estimate: Estimate) -> dict[str, float]:
    """An estimate as the columns `name`, `name_low` and `name_high`."""
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _unit(delta: Delta) -> Delta:
    if delta not in get_args(Delta):
        raise unknown("delta", delta, get_args(Delta))
    return "relative" if delta == "relative" else "points"
