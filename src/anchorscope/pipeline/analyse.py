"""From stored states to tables: probes are trained and read, effects grouped and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from anchorscope.claims.inputs import from_tables
from anchorscope.claims.table import claims_table
from anchorscope.config import Config, unit_of
from anchorscope.engine.passes import CLEAN, KNOCKOUT, MATCHED, RANDOM, passes_of
from anchorscope.errors import UserError
from anchorscope.evidence.pieces import Tables
from anchorscope.parallel import in_parallel
from anchorscope.pathways.group_adds import group_adds
from anchorscope.pathways.grouping import pathways_table
from anchorscope.pathways.refit import refit
from anchorscope.pathways.strict_layer import (
    StrictDraws,
    StrictLayer,
    close_up,
    examine_layer,
)
from anchorscope.pathways.strict_tables import (
    LayerEvidence,
    answer_only_gaps,
    strict_table,
    verdict_table,
)
from anchorscope.pathways.tables import controls_table, layers_table, probes_table
from anchorscope.pathways.two_pathways.finding import Finding, choose_layer, find
from anchorscope.pathways.two_pathways.power import power
from anchorscope.pipeline.stages import Run
from anchorscope.probes.cross_fit import cross_fit
from anchorscope.probes.folds import entity_folds
from anchorscope.probes.labelled import Labelled
from anchorscope.probes.readings import Readings
from anchorscope.records import Sample
from anchorscope.run_folder.samples import to_frame
from anchorscope.run_folder.states import StateBank, load_states

# What strict mode reads by every set of folds; the matched control where a run has one.
_HELD = (CLEAN.name, KNOCKOUT.name, RANDOM.name, MATCHED.name)
States = Mapping[str, np.ndarray]  # pass -> [question, layer, width]


def train_and_read(
    run: Run, answers: Sequence[Labelled], *, passes: Sequence[str], shards: int
) -> dict[str, Readings]:
    """The readings of every dataset under these passes; the probes go to probes/<dataset>."""
    with run.stage("probes"):
        return {of.dataset: _train_and_read(run, of, passes, shards) for of in answers}


def _train_and_read(run: Run, answers: Labelled, passes: Sequence[str], shards: int) -> Readings:
    config, load = run.config, partial(load_states, run.store, ids=answers.ids, shards=shards)
    states = {name: load(name) for name in _HELD if name == CLEAN.name or name in passes}
    run.progress.start(f"probes of {answers.dataset}", states[CLEAN.name].shape[1])
    readings, probes = cross_fit(
        states,
        ids=answers.ids,
        z=answers.z,
        fold=answers.fold,
        C=config.C,
        balance=config.balance,
        dataset=answers.dataset,
        progress=lambda done, total: run.progress.advance(),
    )
    probes.save(run.store.file(f"probes/{answers.dataset}"))
    # One pass in memory at a time: only its logits stay.
    others = {n: probes.logits(load(n), answers.fold) for n in passes if n not in states}
    entity = answers.covariates.entity
    return replace(readings, logits={**readings.logits, **others}, entity=entity)


def pathway_tables(
    run: Run, answers: Sequence[Labelled], readings: Mapping[str, Readings]
) -> Tables:
    """The tables of ΔP, probes, controls and strict mode, all datasets together."""
    with run.stage("pathways"):
        frames = [_pathway_tables(run, of, readings[of.dataset]) for of in answers]
        names = frames[0].keys()
        return {n: pd.concat([of[n] for of in frames], ignore_index=True) for n in names}


def _pathway_tables(run: Run, answers: Labelled, readings: Readings) -> Tables:
    config, dataset = run.config, answers.dataset
    every_run = (CLEAN.name, *(cut.name for cut in passes_of(config)))
    own = {name: readings.logits[name] for name in every_run if name in readings.logits}
    readings = replace(readings, logits=own)
    bank = StateBank(run.store.path, list(answers.ids))
    of = {"model": run.model_name, "dataset": dataset}
    drawn = {"seed": config.seed, "resamples": config.resamples}
    rows = pathways_table(readings, dataset=dataset, grouping=config.grouping)
    evidence = _strict_layers(run, bank, readings, answers)
    layer = choose_layer(readings)
    held = [name for name in _HELD if name in readings.logits]
    states = {name: bank.layer(name, layer)[:, None] for name in held}
    finding = finding_at(layer, states, evidence[layer].examined, answers, config)
    planted = power(*close_up(readings, layer, answers.covariates), draws_of(config))
    finding = replace(finding, power=planted)
    return {
        "pathways": rows,
        "layers": layers_table(
            rows,
            model=run.model_name,
            delta=config.delta,
            entity_by_id=readings.entity_by_id,
            **drawn,
        ),
        "probes": probes_table(readings, model=run.model_name, dataset=dataset, **drawn),
        "controls": controls_table(readings, **of, delta=config.delta),
        "strict": strict_table(list(evidence.values()), **of),
        "verdict": verdict_table(finding, **of),
    }


def save(run: Run, samples: Sequence[Sample], answers: Sequence[Labelled], tables: Tables) -> None:
    """Writes samples.parquet, every table under tables/, and the claims they decide."""
    with run.stage("tables"):
        store, frame = run.store, to_frame(samples)
        folds = {id: int(f) for of in answers for id, f in zip(of.ids, of.fold, strict=True)}
        frame["fold"] = frame["id"].map(folds.get).astype("Int64")
        store.write("samples.parquet", frame.to_parquet)
        claims = claims_table([from_tables(store.info, tables, frame)])
        for name, table in (tables | {"claims": claims}).items():
            if name == "pathways":
                store.write("tables/pathways.parquet", table.to_parquet)
            else:
                store.write(f"tables/{name}.csv", partial(table.to_csv, index=False))


def _strict_layers(
    run: Run, bank: StateBank, readings: Readings, answers: Labelled
) -> dict[int, LayerEvidence]:
    """Strict mode's evidence by layer; each layer's states are read where they are needed."""
    config, draws = run.config, draws_of(run.config)
    chosen = choose_layer(readings)

    def work(layer: int) -> LayerEvidence:
        return LayerEvidence(
            examined=examine_layer(
                readings,
                layer,
                draws,
                covariates=answers.covariates,
                closely=layer == chosen,
            ),
            refit=refit(
                bank.layer(CLEAN.name, layer),
                bank.layer(KNOCKOUT.name, layer),
                readings.at(layer, "paper", KNOCKOUT.name),
                z=answers.z,
                fold=answers.fold,
                C=config.C,
                balance=config.balance,
                seed=config.seed,
                resamples=config.resamples,
                entity=answers.covariates.entity,
            ),
            adds=group_adds(readings, layer, answers.covariates, draws),
            answer_only=answer_only_gaps(readings, layer, draws),
        )

    layers = readings.layer_numbers
    run.progress.start(f"evidence of {answers.dataset}", len(layers))
    evidence = in_parallel(work, layers, progress=lambda done, total: run.progress.advance())
    return dict(zip(layers, evidence, strict=True))


def finding_at(
    layer: int, states: States, first: StrictLayer, answers: Labelled, config: Config
) -> Finding:
    """The finding at a layer, from its states [question, 1, width].

    `first` is what the run's own folds showed; for every further set of folds the probes are
    trained anew.
    """
    examined = [first]
    for seed in range(1, config.fold_seeds):
        fold = entity_folds(answers.entities, folds=config.folds, seed=config.seed + seed)
        try:
            again, _ = cross_fit(
                states, ids=answers.ids, z=answers.z, fold=fold, C=config.C, balance=config.balance
            )
        except UserError:
            continue  # these folds leave a probe too few of a class; verdict.csv counts the sets
        draws = replace(draws_of(config), seed=config.seed + seed)
        seen = examine_layer(again, 1, draws, covariates=answers.covariates, closely=True)
        examined.append(replace(seen, layer=layer))
    return find(examined)


def draws_of(config: Config) -> StrictDraws:
    """How many draws a config asks for, and in which unit."""
    return StrictDraws(seed=config.seed, resamples=config.resamples, points=unit_of(config.delta))
