"""From stored states to tables: probes are trained and read, effects grouped and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.claims.inputs import from_tables
from anchorscope.claims.table import claims_table
from anchorscope.engine.passes import CLEAN, passes_of
from anchorscope.evidence.output import associated_table, output_table
from anchorscope.evidence.pieces import Tables
from anchorscope.parallel import in_parallel
from anchorscope.pathways.finding import findings_table
from anchorscope.pathways.parts import (
    READ,
    DatasetInputs,
    Refits,
    asked_of,
    finding_from,
    layers_of,
    parts_of,
    refits_of,
    second_parts,
)
from anchorscope.pathways.strict_tables import strict_table
from anchorscope.pipeline.stages import Run
from anchorscope.probes.at_once import fits_of_layers
from anchorscope.probes.cross_fit import TrainingPart, probes_of_layer, stacked, training_parts
from anchorscope.probes.labelled import Labelled
from anchorscope.probes.many_fits import Made
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Sample
from anchorscope.run_folder.outputs import load_outputs
from anchorscope.run_folder.samples import to_frame
from anchorscope.run_folder.states import StateBank
from anchorscope.stats.intervals import Draws

LayerParts = dict[int, Callable[[], Any]]


def train_and_read(
    run: Run,
    answers: Sequence[Labelled],
    *,
    passes: Sequence[str],
    done: Mapping[str, Readings] | None = None,
) -> dict[str, Readings]:
    """The readings of every dataset under these passes; the probes go to probes/<dataset>.

    What is `done` already is not done again.
    """
    done = done or {}
    with run.stage("probes"):
        lacking = [of for of in answers if of.dataset not in done]
        readings = {**done, **readings_of(run, lacking, passes=passes)}
        return {of.dataset: readings[of.dataset] for of in answers}


def readings_of(
    run: Run,
    answers: Sequence[Labelled],
    *,
    passes: Sequence[str],
    parts: Mapping[str, LayerParts] | None = None,
    workers: int | None = None,
) -> dict[str, Readings]:
    """The readings of these datasets, whose probes are trained and saved.

    Layers of all datasets are spread over processes, each of which reads its own from disk; their
    `parts` may have been made before.
    """
    parts = parts or {of.dataset: layer_parts(run, of, passes) for of in answers}
    work = {(of.dataset, k): part for of in answers for k, part in parts[of.dataset].items()}
    fitted = _each(run, "probes", list(work.values()), workers)
    by_dataset: dict[str, list] = {of.dataset: [] for of in answers}
    for (dataset, _), layer in zip(work, fitted, strict=True):
        by_dataset[dataset].append(layer)
    return {of.dataset: _joined(run, of, by_dataset[of.dataset]) for of in answers}


def _each(run: Run, name: str, parts: Sequence[Callable[[], Any]], workers: int | None) -> list:
    """What the parts give, each in a process."""
    if not parts:  # all is done already
        return []
    run.progress.start(name, len(parts))
    heard = {"progress": lambda *_: run.progress.advance(), "workers": workers}
    return in_parallel(lambda part: part(), parts, **heard)


def layer_parts(run: Run, answers: Labelled, passes: Sequence[str]) -> LayerParts:
    """How the probes of each layer are trained and read, by any process; a GPU may have fitted."""
    bank = StateBank(run.store.path, list(answers.ids))
    names, layers = tuple(dict.fromkeys((CLEAN.name, *passes))), range(1, bank.layers + 1)
    of = {"z": answers.z, "fold": answers.fold, "entity": answers.entities}
    of |= {"C": run.config.C, "balance": run.config.balance}

    def fits_of(part: TrainingPart) -> dict[int, Made]:
        return fits_of_layers(
            lambda k: (bank.layer(CLEAN.name, k)[part.rows], part.request), layers
        )

    made = [fits_of(part) for part in training_parts(**of)]
    return {
        k: partial(
            probes_of_layer,
            bank,
            k,
            names,
            ids=answers.ids,
            fits=[by_layer.get(k) for by_layer in made],
            **of,
        )
        for k in layers
    }


def _joined(
    run: Run, answers: Labelled, layers: Sequence[tuple[ProbeSet, Mapping[str, np.ndarray]]]
) -> Readings:
    """The readings of a dataset's layers, whose probes are saved."""
    probes = stacked([of for of, _ in layers])
    probes.save(run.store.file(f"probes/{answers.dataset}"))
    names = layers[0][1]
    return Readings(
        ids=answers.ids,
        z=answers.z,
        fold=answers.fold,
        probes=probes.probes,
        logits={name: np.stack([of[name] for _, of in layers], axis=2) for name in names},
        entity=answers.covariates.entity,
    )


def pathway_tables(
    run: Run,
    answers: Sequence[Labelled],
    readings: Mapping[str, Readings],
    *,
    done: Mapping[str, Tables] | None = None,
) -> Tables:
    """The tables of ΔP, probes, controls and strict mode, all datasets together.

    What is `done` already, by dataset, is not done again.
    """
    done = done or {}
    with run.stage("pathways"):
        lacking = [of for of in answers if of.dataset not in done]
        tables = {**done, **pathways_of(run, lacking, readings)}
        frames = [tables[of.dataset] for of in answers]
        return {n: pd.concat([of[n] for of in frames], ignore_index=True) for n in frames[0]}


def pathways_of(
    run: Run,
    answers: Sequence[Labelled],
    readings: Mapping[str, Readings],
    *,
    refits: Mapping[str, Refits] | None = None,
    workers: int | None = None,
) -> dict[str, Tables]:
    """The same tables of each of these datasets; their `refits` may have been made before."""
    asked = {of.dataset: _asked(run, of, readings[of.dataset]) for of in answers}
    refits = refits or {of.dataset: refits_before(run, of) for of in answers}
    by_dataset: dict[str, dict] = {name: {} for name in asked}

    def compute(name: str, parts: Mapping[tuple[str, Any], Callable[[], Any]]) -> None:
        for key, result in zip(parts, _each(run, name, list(parts.values()), workers), strict=True):
            by_dataset[key[0]][key[1]] = result

    first = {n: parts_of(of, refits[n]) for n, of in asked.items()}
    compute("pathways", {(n, key): part for n, of in first.items() for key, part in of.items()})
    second = {n: second_parts(of, by_dataset[n]) for n, of in asked.items()}
    compute("findings", {(n, key): part for n, of in second.items() for key, part in of.items()})
    return {name: _tables(of, by_dataset[name]) for name, of in asked.items()}


def refits_before(run: Run, answers: Labelled) -> Refits:
    """What a GPU makes for a dataset's pathways before there are probes."""
    return refits_of(answers, StateBank(run.store.path, list(answers.ids)), run.config)


def _asked(run: Run, answers: Labelled, readings: Readings) -> DatasetInputs:
    every_run = dict.fromkeys((*READ, *(cut.name for cut in passes_of(run.config))))
    own = {name: readings.logits[name] for name in every_run if name in readings.logits}
    return asked_of(
        model=run.model_name,
        config=run.config,
        answers=answers,
        readings=replace(readings, logits=own),
        bank=StateBank(run.store.path, list(answers.ids)),
    )


def _tables(of: DatasetInputs, results: Mapping[tuple[str, Any], Any]) -> Tables:
    """The tables of a dataset from the results of its parts."""
    names = {"model": of.model, "dataset": of.answers.dataset}
    by_mode = [results["mode", mode] for mode in MODES]
    layers = layers_of(of, results)
    finding = finding_from(of, results)
    return {
        name: pd.concat([tables[name] for tables in by_mode], ignore_index=True)
        for name in by_mode[0]
    } | {
        **results["tables", ""],
        "strict": strict_table(layers, **names),
        "findings": findings_table(finding, **names, layer=of.layer),
    }


def output_tables(
    run: Run,
    answers: Sequence[Labelled],
    samples: Sequence[Sample],
    tables: Tables,
    *,
    shards: int,
) -> Tables:
    """What the model itself makes of its answers under every pass, by strict mode's pathways.

    Nothing where the run has no outputs: states that were extracted elsewhere come without them.
    """
    passes = [cut.name for cut in passes_of(run.config) if cut.has_output]
    outputs = load_outputs(run.store, samples, passes, shards=shards)
    if set(outputs["pass"]) <= {CLEAN.name}:
        return {}
    layers = dict(zip(tables["findings"]["dataset"], tables["findings"]["layer"], strict=True))
    strict = tables["pathways"].loc[tables["pathways"]["mode"] == "strict"]
    rows: dict[str, list[pd.DataFrame]] = {"output": [], "associated": []}
    for of in answers:
        layer = int(layers[of.dataset])
        groups = strict.loc[(strict["dataset"] == of.dataset) & (strict["layer"] == layer)]
        groups = groups.assign(entity=groups["id"].map(dict(zip(of.ids, of.entities, strict=True))))
        names = {"model": run.model_name, "dataset": of.dataset}
        draws = Draws(seed=run.config.seed, resamples=run.config.resamples)
        rows["output"].append(output_table(outputs, groups, **names, layer=layer, draws=draws))
        rows["associated"].append(associated_table(outputs, groups, **names))
    return {name: pd.concat(frames, ignore_index=True) for name, frames in rows.items()}


def save(run: Run, samples: Sequence[Sample], answers: Sequence[Labelled], tables: Tables) -> None:
    """Writes samples.parquet, every table under tables/, and the claims they decide."""
    frame = save_samples(run, samples, answers)
    save_tables(run, tables)
    save_rest(run, tables, frame)


def save_samples(run: Run, samples: Sequence[Sample], answers: Sequence[Labelled]) -> pd.DataFrame:
    """What was written to samples.parquet: the samples, each with its fold."""
    with run.stage("tables"):
        frame = to_frame(samples)
        folds = {id: int(f) for of in answers for id, f in zip(of.ids, of.fold, strict=True)}
        frame["fold"] = frame["id"].map(folds.get).astype("Int64")
        run.store.write("samples.parquet", frame.to_parquet)
        return frame


def save_tables(run: Run, tables: Tables) -> None:
    """Writes the tables under tables/ that figures are drawn from."""
    with run.stage("tables"):
        for name, table in tables.items():
            if name != "pathways":
                run.store.write(f"tables/{name}.csv", partial(table.to_csv, index=False))


def save_rest(run: Run, tables: Tables, frame: pd.DataFrame) -> None:
    """Writes the groups of all samples, and the claims that tables and samples decide."""
    run.store.write("tables/pathways.parquet", tables["pathways"].to_parquet)
    claims = claims_table([from_tables(run.store.info, tables, frame)])
    run.store.write("tables/claims.csv", partial(claims.to_csv, index=False))
