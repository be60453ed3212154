"""From the answers and states of a run folder to its tables: the one order of the analysis.

`run`, `analyse`, `simulate` and `verify --deep` all come through here. No model is needed, and a
dataset knows nothing of the others, so that any process can analyse one.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

from anchorscope.claims.inputs import from_tables
from anchorscope.claims.table import claims_table
from anchorscope.config import Config
from anchorscope.engine.passes import CLEAN, KNOCKOUT, passes_of
from anchorscope.evidence.output import associated_table, output_table
from anchorscope.evidence.pieces import (
    PieceInputs,
    Tables,
    evidence_across,
    evidence_tables,
    pieces_of,
    probed_of,
)
from anchorscope.evidence.shards import evidence_name, stored_rows
from anchorscope.parallel import in_parallel
from anchorscope.pathways.band import READ
from anchorscope.pathways.dataset import DatasetInputs, pathway_tables
from anchorscope.pipeline.prepare import spans_table
from anchorscope.pipeline.request import Run
from anchorscope.pipeline.variants import ablation_table, read_layers
from anchorscope.probes.labelled import Labelled, labelled
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.probes.readings import Readings, read_abstained
from anchorscope.progress import Progress, Quiet
from anchorscope.records import Sample
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.identity import git_revision, versions
from anchorscope.run_folder.manifest import MARKERS, REMAKE, Checked
from anchorscope.run_folder.samples import (
    count_answers,
    load_outputs,
    stored_answers,
    stored_samples,
    to_frame,
)
from anchorscope.run_folder.states import StateBank, StoredStates
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView
from anchorscope.show import write_figures, write_report
from anchorscope.stats.intervals import Draws

_INPUTS = ("answers", "states", "outputs", "evidence")  # that `verify --deep` starts from
_ROUNDING = 1e-6  # relative; more is another number


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The samples of one dataset, and those of them that probes learn from."""

    samples: Sequence[Sample]
    answers: Labelled
    shards: int  # of the run; the dataset's states are in some of them

    @property
    def name(self) -> str:
        return self.answers.dataset


def stored_dataset(run: Run, name: str, *, shards: Sequence[int]) -> Dataset:
    """A dataset from the answers on disk, which are in these shards."""
    samples = [sample for number in shards for sample in stored_answers(run.store, number)]
    answers = labelled(samples, name, run.config)
    return Dataset(samples=samples, answers=answers, shards=max(shards) + 1)


def stored_datasets(run: Run) -> list[Dataset]:
    """All datasets of a run from the answers on disk, in the order of their shards."""
    count = count_answers(run.store)
    return [
        Dataset(samples=samples, answers=labelled(samples, name, run.config), shards=count)
        for name, samples in stored_samples(run.store).items()
    ]


def train_probes(run: Run, dataset: Dataset) -> Readings:
    """Train the probes of all layers, save them to probes/<dataset>, and read every pass."""
    answers = dataset.answers
    with run.stage("probes"):
        bank = StateBank(run.store.path, list(answers.ids))
        wanted = (CLEAN.name, *READ, *probed_of(run.config))
        names = [name for name in dict.fromkeys(wanted) if name in bank.names]
        run.progress.start("probes", bank.layers)
        readings, probes = read_layers(
            bank, answers, run.config, names, progress=lambda *_: run.progress.advance()
        )
        probes.save(run.store.file(f"probes/{dataset.name}"))
        run.store.add(f"probes/{dataset.name}")
    return readings


def analyse_dataset(run: Run, dataset: Dataset, readings: Readings) -> Tables:
    """Every table of one dataset, by name."""
    with run.stage("pathways"):
        tables = _pathway_tables(run, dataset, readings)
    with run.stage("evidence tables"):
        tables |= evidence_tables(run.config.evidence, _piece_inputs(run, dataset, readings))
        tables |= _output_tables(run, dataset, tables)
    if run.config.ablate:
        with run.stage("ablation"):
            tables["ablate"] = ablation_table(run, dataset.samples, dataset.name)
    return tables


def analyse(run: Run, datasets: Sequence[Dataset]) -> None:
    """Compute probes/, samples.parquet and all of tables/ from the states on disk."""
    samples = save_samples(run, datasets)
    tables = [analyse_dataset(run, dataset, train_probes(run, dataset)) for dataset in datasets]
    save_tables(run, join_tables(run, tables), samples)


def join_tables(run: Run, by_dataset: Sequence[Tables]) -> Tables:
    """The tables of all datasets together, and those that compare datasets."""
    names = dict.fromkeys(name for tables in by_dataset for name in tables)
    joined = {
        name: pd.concat([t[name] for t in by_dataset if name in t], ignore_index=True)
        for name in names
    }
    return joined | (evidence_across(joined, run.config) if len(by_dataset) > 1 else {})


def save_samples(run: Run, datasets: Sequence[Dataset]) -> pd.DataFrame:
    """Write samples.parquet: the samples, each with its fold."""
    frame = to_frame([sample for dataset in datasets for sample in dataset.samples])
    folds = {
        id: int(fold)
        for dataset in datasets
        for id, fold in zip(dataset.answers.ids, dataset.answers.fold, strict=True)
    }
    frame["fold"] = frame["id"].map(folds.get).astype("Int64")
    run.store.write("samples.parquet", frame.to_parquet)
    return frame


def save_tables(run: Run, tables: Tables, samples: pd.DataFrame) -> None:
    """Write every table under tables/, and the claims that they and the samples decide."""
    with run.stage("tables"):
        for name, table in tables.items():
            if name == "pathways":
                run.store.write("tables/pathways.parquet", table.to_parquet)
            else:
                run.store.write(f"tables/{name}.csv", partial(table.to_csv, index=False))
        claims = claims_table([from_tables(run.store.info, tables, samples)])
        run.store.write("tables/claims.csv", partial(claims.to_csv, index=False))


def _pathway_tables(run: Run, dataset: Dataset, readings: Readings) -> Tables:
    """The tables of ΔP, probes, controls and strict mode, and the finding."""
    bank = StateBank(run.store.path, list(dataset.answers.ids))
    every_run = dict.fromkeys((*READ, *(cut.name for cut in passes_of(run.config))))
    own = {name: readings.logits[name] for name in every_run if name in readings.logits}
    inputs = DatasetInputs(
        model=run.model_name,
        config=run.config,
        answers=dataset.answers,
        readings=replace(readings, logits=own),
        bank=bank,
    )

    def spread(name: str, parts: Sequence[Callable[[], Any]]) -> list[Any]:
        run.progress.start(name, len(parts))
        return in_parallel(lambda part: part(), parts, progress=lambda *_: run.progress.advance())

    return pathway_tables(inputs, spread)


def _piece_inputs(run: Run, dataset: Dataset, readings: Readings) -> PieceInputs:
    """What pieces of evidence see of a dataset."""
    pieces, store, answers = pieces_of(run.config), run.store, dataset.answers
    bank = StateBank(store.path, list(answers.ids))
    states = sorted({name for piece in pieces for name in piece.loads if name in bank.names})
    shards = range(dataset.shards)
    rows = {
        name: stored_rows(store, name, dataset.name, shards)
        for piece in pieces
        for name in piece.rows
        if all(store.has(evidence_name(name, number)) for number in shards)
    }
    abstained = any(piece.needs_abstained for piece in pieces)
    return PieceInputs(
        model=run.model_name,
        dataset=dataset.name,
        config=run.config,
        readings=readings,
        covariates=answers.covariates,
        states={name: StoredStates(bank, name) for name in states},
        abstained=_read_abstained(run, dataset) if abstained else None,
        rows=rows,
    )


def _read_abstained(run: Run, dataset: Dataset) -> Readings | None:
    """What the probes say of the answers that are neither right nor wrong."""
    own = [s for s in dataset.samples if s.verdict == "abstain"]
    own = [s for s in own if s.exact_answer and s.exact_question]
    ids = [s.id for s in own]
    if not ids:
        return None
    names = (CLEAN.name, KNOCKOUT.name)
    bank = StateBank(run.store.path, ids)
    states = {name: bank.all_layers(name) for name in names}
    entity = np.array([s.question.entity for s in own])
    probes = ProbeSet.load(run.store.file(f"probes/{dataset.name}"))
    return read_abstained(probes, states, ids=ids, entity=entity)


def _output_tables(run: Run, dataset: Dataset, tables: Tables) -> Tables:
    """Tabulate the model's own output under every pass, by strict mode's pathways.

    Nothing where the run has no outputs: states that were extracted elsewhere come without them.
    """
    passes = [cut.name for cut in passes_of(run.config) if cut.has_output]
    outputs = load_outputs(run.store, dataset.samples, passes, shards=dataset.shards)
    if set(outputs["pass"]) <= {CLEAN.name}:
        return {}
    layer = int(tables["findings"]["layer"].iloc[0])
    rows = tables["pathways"]
    groups = rows.loc[(rows["mode"] == "strict") & (rows["layer"] == layer)]
    entity = dict(zip(dataset.answers.ids, dataset.answers.entities, strict=True))
    groups = groups.assign(entity=groups["id"].map(entity))
    names = {"model": run.model_name, "dataset": dataset.name}
    draws = Draws(seed=run.config.seed, resamples=run.config.resamples)
    return {
        "output": output_table(outputs, groups, **names, layer=layer, draws=draws),
        "associated": associated_table(outputs, groups, **names),
    }


# Around the analysis: the description of a run without a model, and the pages of any run.


def describe(
    store: Store, config: Config, *, command: str, model: dict[str, Any], dataset: dict[str, Any]
) -> None:
    """Write run.json as a run with a model does, and an empty table of spans."""
    store.save_info(
        {
            "config": asdict(config),
            "command": command,
            "model": model,
            "datasets": [dataset],
            "versions": versions(),
            "git": git_revision(),
        }
    )
    empty = pd.DataFrame(columns=list(table_columns.SPANS))
    store.write("tables/spans.csv", partial(empty.to_csv, index=False))


def publish(run: Run, **extras: list[str]) -> RunView:
    """Write the figures and the report, and mark the run as finished, with what it has beside."""
    with run.stage("report"):
        view = RunView.open(run.store.path, unfinished_ok=True)
        write_figures(view)
        write_report(view)
        run.store.add("figures", "report.html")
    run.store.save_info({"finished": True, **extras})
    return RunView.open(run.store.path)


# The tables computed again, in a folder of their own, and compared byte for byte.


def recomputed(path: Path, *, progress: Progress | None = None) -> Iterator[Checked]:
    """Each table of a finished run, computed again and compared."""
    view = RunView.open(path, collected_ok=True)
    if not (view.path / "answers").is_dir() or not (view.path / "states").is_dir():
        yield Checked(name="--deep", note="no answers or no states here: nothing is computed again")
        return
    with tempfile.TemporaryDirectory() as place:
        again = Path(place)
        # A folder that reads the run's answers and states, and writes beside nothing of it.
        (again / MARKERS).mkdir()
        for name in (*_INPUTS, *(f"{MARKERS}/{name}" for name in _INPUTS)):
            if (view.path / name).is_dir():
                (again / name).symlink_to((view.path / name).absolute())
        _compute(view, again, progress or Quiet())
        names = [file.relative_to(again) for file in sorted(again.rglob("*")) if file.is_file()]
        for name in names:
            if name.parts[0] in ("tables", "probes", "samples.parquet"):
                yield _compared(view.path, again, name.as_posix())


def _compute(view: RunView, again: Path, progress: Progress) -> None:
    """Every table that answers and states decide, under `again`."""
    config = Config.restore(dict(view.config))
    for field, noted in {"evidence": "evidence", "ablate": "ablated"}.items():
        if noted in view.info:
            config = replace(config, **{field: tuple(view.info[noted])})
    run = Run(store=Store(again, info=dict(view.info)), config=config, progress=progress)
    samples = [sample for own in stored_samples(run.store).values() for sample in own]
    spans = spans_table([sample.question for sample in samples])
    run.store.write("tables/spans.csv", partial(spans.to_csv, index=False))
    if "only" in view.info.get("identity", {}):
        run.store.write("samples.parquet", to_frame(samples).to_parquet)
    else:
        analyse(run, stored_datasets(run))


def _compared(path: Path, again: Path, name: str) -> Checked:
    """Compare a file of the run with its recomputed version."""
    if not (path / name).is_file():
        return Checked(name=name, wrong="computed again, it is not in the folder", do=REMAKE)
    if (path / name).read_bytes() == (again / name).read_bytes():
        return Checked(name=name, note="computed again, the same bytes")
    if _same_but_for_rounding(path / name, again / name):
        return Checked(name=name, note="computed again, equal to rounding")
    return Checked(
        name=name,
        wrong="computed again from answers and states, it comes out otherwise",
        do="if versions are the same, the folder was tampered with: make the run again",
    )


def _same_but_for_rounding(one: Path, other: Path) -> bool:
    """Whether two files differ in nothing but the last digits of their numbers."""
    if one.suffix == ".safetensors":
        a, b = load_file(one), load_file(other)
        if {n: own.shape for n, own in a.items()} != {n: own.shape for n, own in b.items()}:
            return False
        # By the largest number of a tensor: small weights are sums in which large ones cancel.
        return all(np.abs(a[n] - b[n]).max() <= _ROUNDING * np.abs(a[n]).max() for n in a)
    if one.suffix == ".json":  # about the weights beside it, whose checksum is one of bytes
        facts = [json.loads(f.read_text(encoding="utf-8")) | {"sha256": ""} for f in (one, other)]
        return facts[0] == facts[1]
    read = {".csv": pd.read_csv, ".parquet": pd.read_parquet}.get(one.suffix)
    if read is None:
        return False
    try:
        pd.testing.assert_frame_equal(read(one), read(other), rtol=_ROUNDING, atol=_ROUNDING)
    except AssertionError:
        return False
    return True
