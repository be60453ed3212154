"""From stored states to tables: probes are trained and read, effects grouped and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

import numpy as np
import pandas as pd

from anchorscope.config import Config
from anchorscope.errors import UserError
from anchorscope.pathways.claims import claims_table, from_tables
from anchorscope.pathways.effects import Delta
from anchorscope.pathways.examine import Effort, Examined, examine
from anchorscope.pathways.grouping import pathways_table
from anchorscope.pathways.refit import refit
from anchorscope.pathways.strict import (
    LayerEvidence,
    answer_only_gaps,
    group_adds,
    strict_table,
    verdict_table,
)
from anchorscope.pathways.tables import controls_table, layers_table, probes_table
from anchorscope.pathways.verdict import Verdict, choose_layer, judge
from anchorscope.probes.crossfit import cross_fit
from anchorscope.probes.each import each
from anchorscope.probes.probeset import ProbeSet
from anchorscope.probes.readings import Readings, read
from anchorscope.probes.splits import check_enough, entity_folds
from anchorscope.progress import Progress
from anchorscope.records import Sample
from anchorscope.samples import to_frame
from anchorscope.states import load_states
from anchorscope.store import Store

_HELD = ("clean", "knockout", "random")  # states that are read more than once
States = Mapping[str, np.ndarray]  # intervention -> [question, layer, width]


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The tables of a run, all datasets together."""

    layers: pd.DataFrame
    probes: pd.DataFrame
    controls: pd.DataFrame
    strict: pd.DataFrame
    verdict: pd.DataFrame
    pathways: pd.DataFrame


@dataclass(frozen=True, kw_only=True)
class Analysed:
    """The tables of a run, and by dataset what further evidence builds on."""

    tables: Tables
    readings: dict[str, Readings] = field(default_factory=dict)  # under every intervention read
    layer: dict[str, int] = field(default_factory=dict)  # the layer settled on, from 1


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The samples of one dataset that probes may use, with class and fold."""

    dataset: str
    ids: tuple[str, ...]
    z: np.ndarray  # [question], 1 = wrong
    fold: np.ndarray  # [question]
    entities: tuple[str, ...]
    known: np.ndarray  # [question, 2]: log popularity (NaN where unknown), length of the prompt


def labelled(samples: Sequence[Sample], dataset: str, config: Config) -> Labelled:
    """The usable samples of a dataset; an error that counts them where they are too few."""
    used = [s for s in samples if s.question.dataset == dataset and s.usable]
    z = np.array([int(s.verdict == "wrong") for s in used], dtype=np.int64)
    entities = tuple(s.question.entity for s in used)
    fold = entity_folds(entities, folds=config.folds, seed=config.seed)
    check_enough(z, fold, dataset=dataset)
    return Labelled(
        dataset=dataset,
        ids=tuple(s.id for s in used),
        z=z,
        fold=fold,
        entities=entities,
        known=np.array([[_log(s.question.popularity), len(s.prompt_ids)] for s in used]),
    )


def analyse(
    store: Store,
    parts: Sequence[Labelled],
    interventions: Sequence[str],
    *,
    model: str,
    shards: int,
    config: Config,
    progress: Progress,
    further: Sequence[str] = (),
) -> Analysed:
    """The tables of all datasets; the probes are stored on the way.

    `further` interventions are read by the same probes, for evidence beside these tables.
    """
    tables: dict[str, list[pd.DataFrame]] = {field.name: [] for field in fields(Tables)}
    every, layer = {}, {}
    for part in parts:
        load = partial(load_states, store, ids=part.ids, shards=shards)
        states = {name: load(name) for name in _HELD}
        readings, probes = _probe(store, part, states, config, progress)
        # One intervention in memory at a time: only its logits stay.
        others = [name for name in (*interventions, *further) if name not in states]
        logits = {name: _logits(probes, readings, states["clean"], load(name)) for name in others}
        every[part.dataset] = replace(readings, logits={**readings.logits, **logits})
        readings = _only(every[part.dataset], ("clean", *interventions))
        drawn = {"seed": config.seed, "resamples": config.resamples}
        rows = pathways_table(readings, dataset=part.dataset, grouping=config.grouping)
        tables["pathways"].append(rows)
        tables["layers"].append(layers_table(rows, model=model, delta=config.delta, **drawn))
        of = {"model": model, "dataset": part.dataset}
        tables["probes"].append(probes_table(readings, **of, **drawn))  # type: ignore[arg-type]
        tables["controls"].append(controls_table(readings, **of, delta=config.delta))
        evidence = _evidence(states, readings, part, config, progress)
        tables["strict"].append(strict_table(evidence, **of))
        layer[part.dataset] = choose_layer(readings) + 1
        chosen = evidence[layer[part.dataset] - 1].examined
        verdict = verdict_of(states, readings, chosen, part, config)
        tables["verdict"].append(verdict_table(verdict, **of))
    joined = {name: pd.concat(frames, ignore_index=True) for name, frames in tables.items()}
    return Analysed(tables=Tables(**joined), readings=every, layer=layer)


def save_tables(
    store: Store,
    tables: Tables,
    samples: Sequence[Sample],
    parts: Sequence[Labelled],
    other: Mapping[str, pd.DataFrame],
) -> None:
    """Writes samples.parquet and everything under tables/ that the analysis gave.

    `other` are the tables of further evidence, by name: claims speak of them too.
    """
    frame = to_frame(samples)
    folds = {id: int(f) for p in parts for id, f in zip(p.ids, p.fold, strict=True)}
    frame["fold"] = frame["id"].map(folds.get).astype("Int64")
    store.write("samples.parquet", frame.to_parquet)
    run = from_tables(store.info, tables.pathways, tables.strict, tables.verdict, frame, other)
    claims = claims_table([run])
    named = {f.name: getattr(tables, f.name) for f in fields(Tables) if f.name != "pathways"}
    for name, table in (named | dict(other) | {"claims": claims}).items():
        store.write(f"tables/{name}.csv", partial(table.to_csv, index=False))
    store.write("tables/pathways.parquet", tables.pathways.to_parquet)


def _logits(
    probes: ProbeSet, readings: Readings, clean: np.ndarray, states: np.ndarray
) -> np.ndarray:
    """What the probes say of states under one more intervention, [probe, question, layer]."""
    both = {"clean": clean, "other": states}
    found = read(probes, both, ids=readings.ids, z=readings.z, fold=readings.fold)
    return found.logits["other"]


def _only(readings: Readings, names: Sequence[str]) -> Readings:
    return replace(readings, logits={name: readings.logits[name] for name in names})


def _probe(
    store: Store, part: Labelled, states: States, config: Config, progress: Progress
) -> tuple[Readings, ProbeSet]:
    """The readings of one dataset and its probes, which go to probes/<dataset>."""
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
    return readings, probes


def _evidence(
    states: States, readings: Readings, part: Labelled, config: Config, progress: Progress
) -> list[LayerEvidence]:
    """Strict mode's evidence, layer by layer."""
    layers, effort = readings.layers, effort_of(config)

    def work(layer: int) -> LayerEvidence:
        return LayerEvidence(
            examined=examine(readings, layer, effort),
            refit=refit(
                states["clean"][:, layer],
                states["knockout"][:, layer],
                readings.of("paper", "knockout")[:, layer],
                z=part.z,
                fold=part.fold,
                C=config.C,
                balance=config.balance,
                seed=config.seed,
                resamples=config.resamples,
            ),
            adds=group_adds(readings, layer, part.known, effort),
            answer_only=answer_only_gaps(readings, layer, effort),
        )

    progress.start(f"evidence of {part.dataset}", layers)
    return each(work, range(layers), progress=lambda done, total: progress.advance())


def verdict_of(
    states: States, readings: Readings, chosen: Examined, part: Labelled, config: Config
) -> Verdict:
    """The finding at the chosen layer, whose probes are trained anew for every set of folds."""
    layer = choose_layer(readings)
    here = {name: of[:, layer : layer + 1] for name, of in states.items()}
    examined = [chosen]
    for seed in range(1, config.fold_seeds):
        fold = entity_folds(part.entities, folds=config.folds, seed=config.seed + seed)
        try:
            again, _ = cross_fit(
                here, ids=part.ids, z=part.z, fold=fold, C=config.C, balance=config.balance
            )
        except UserError:
            continue  # these folds leave a probe too few of a class; verdict.csv counts the sets
        effort = replace(effort_of(config), seed=config.seed + seed)
        examined.append(examine(again, 0, effort))
    return judge(examined)


def effort_of(config: Config) -> Effort:
    """How many draws a config asks for, and in which unit."""
    return Effort(seed=config.seed, resamples=config.resamples, points=unit_of(config.delta))


def unit_of(delta: str) -> Delta:
    """What ΔP counts in the tables: points, unless it is relative."""
    return "relative" if delta == "relative" else "points"


def _log(popularity: float | None) -> float:
    return float(np.log10(popularity)) if popularity is not None and popularity > 0 else np.nan
