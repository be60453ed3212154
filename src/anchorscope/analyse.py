"""From stored states to tables: probes are trained and read, effects grouped and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from anchorscope.config import Config
from anchorscope.pathways.grouping import pathways_table
from anchorscope.pathways.tables import controls_table, layers_table, probes_table
from anchorscope.probes.crossfit import cross_fit
from anchorscope.probes.readings import Readings
from anchorscope.probes.splits import check_enough, entity_folds
from anchorscope.progress import Progress
from anchorscope.records import Sample
from anchorscope.states import load_states
from anchorscope.store import Store


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The tables of a run, all datasets together."""

    layers: pd.DataFrame
    probes: pd.DataFrame
    controls: pd.DataFrame
    pathways: pd.DataFrame


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The samples of one dataset that probes may use, with class and fold."""

    dataset: str
    ids: tuple[str, ...]
    z: np.ndarray  # [question], 1 = wrong
    fold: np.ndarray  # [question]


def labelled(samples: Sequence[Sample], dataset: str, config: Config) -> Labelled:
    """The usable samples of a dataset; an error that counts them where they are too few."""
    used = [s for s in samples if s.question.dataset == dataset and s.usable]
    z = np.array([int(s.verdict == "wrong") for s in used], dtype=np.int64)
    fold = entity_folds([s.question.entity for s in used], folds=config.folds, seed=config.seed)
    check_enough(z, fold, dataset=dataset)
    return Labelled(dataset=dataset, ids=tuple(s.id for s in used), z=z, fold=fold)


def analyse(
    store: Store,
    parts: Sequence[Labelled],
    interventions: Sequence[str],
    *,
    model: str,
    shards: int,
    config: Config,
    progress: Progress,
) -> Tables:
    """The tables of all datasets; the probes are stored on the way."""
    tables: dict[str, list[pd.DataFrame]] = {
        "layers": [],
        "probes": [],
        "controls": [],
        "pathways": [],
    }
    for part in parts:
        readings = _probe(store, part, interventions, shards, config, progress)
        drawn = {"seed": config.seed, "resamples": config.resamples}
        rows = pathways_table(readings, dataset=part.dataset)
        tables["pathways"].append(rows)
        tables["layers"].append(layers_table(rows, model=model, delta=config.delta, **drawn))
        of = {"model": model, "dataset": part.dataset}
        tables["probes"].append(probes_table(readings, **of, **drawn))  # type: ignore[arg-type]
        tables["controls"].append(controls_table(readings, **of, delta=config.delta))
    return Tables(**{name: pd.concat(frames, ignore_index=True) for name, frames in tables.items()})


def _probe(
    store: Store,
    part: Labelled,
    interventions: Sequence[str],
    shards: int,
    config: Config,
    progress: Progress,
) -> Readings:
    """The readings of one dataset; its probes go to probes/<dataset>."""
    names = ("clean", *interventions)
    states = {name: load_states(store, name, part.ids, shards) for name in names}
    progress.start(f"probes of {part.dataset}", states["clean"].shape[1])
    readings, probes = cross_fit(
        states,
        ids=part.ids,
        z=part.z,
        fold=part.fold,
        C=config.C,
        balance=config.balance,
        dataset=part.dataset,
        progress=lambda done, total: progress.advance(),
    )
    probes.save(store.file(f"probes/{part.dataset}"))
    return readings
