"""Analyse the answers and states of a run folder: train probes and write every table.

`run`, `analyse`, `simulate` and `verify --deep` all use these functions. No model is needed, and
datasets are analysed independently, so any process can analyse one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from anchorscope.claims.decision import from_tables
from anchorscope.claims.table import claims_table
from anchorscope.config import Config
from anchorscope.engine.interventions import CLEAN, passes_of
from anchorscope.evidence.pieces import Tables, evidence_across, evidence_tables, probed_of
from anchorscope.evidence.stored import Dataset, stored_inputs, stored_output_tables
from anchorscope.parallel import in_parallel
from anchorscope.pathways.band import READ
from anchorscope.pathways.dataset import DatasetInputs, pathway_tables
from anchorscope.pipeline.request import Run
from anchorscope.probes.cross_fit import read_layers
from anchorscope.probes.folds import Labelled, labelled
from anchorscope.probes.probe_set import Readings
from anchorscope.progress import Progress, Quiet
from anchorscope.records import Sample
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.compare import compare_files
from anchorscope.run_folder.identity import git_revision, versions
from anchorscope.run_folder.manifest import MARKERS, Checked
from anchorscope.run_folder.samples import count_answers, stored_samples, to_frame
from anchorscope.run_folder.states import StateBank
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView
from anchorscope.show import write_figures, write_report
from anchorscope.spans.question import spans_table

_INPUTS = ("answers", "states", "outputs", "evidence")  # read by `verify --deep`


def stored_datasets(run: Run, shards: Sequence[int] | None = None) -> list[Dataset]:
    """Load the datasets of a run from the answers on disk, or only those of some shards."""
    numbers = range(count_answers(run.store)) if shards is None else shards
    samples = stored_samples(run.store, numbers)
    return [
        Dataset(samples=own, answers=labelled(own, name, run.config), shards=max(numbers) + 1)
        for name, own in samples.items()
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
    """Compute every table of one dataset, by name."""
    store, config, model = run.store, run.config, run.model_name
    every_run = dict.fromkeys((*READ, *(cut.name for cut in passes_of(config))))
    own = {name: readings.logits[name] for name in every_run if name in readings.logits}
    pathways = DatasetInputs(
        model=model,
        config=config,
        answers=dataset.answers,
        readings=replace(readings, logits=own),
        bank=StateBank(store.path, list(dataset.answers.ids)),
    )

    def spread(name: str, parts: Sequence[Callable[[], Any]]) -> list[Any]:
        run.progress.start(name, len(parts))
        return in_parallel(lambda part: part(), parts, progress=lambda *_: run.progress.advance())

    with run.stage("pathways"):
        tables = pathway_tables(pathways, spread)
    with run.stage("evidence tables"):
        inputs = stored_inputs(store, config, dataset, readings, model=model)
        tables |= evidence_tables(config.evidence, inputs)
        tables |= stored_output_tables(store, config, dataset, tables, model=model)
    if config.ablate:
        from anchorscope.pipeline.variants import ablation_table  # with torch, for its passes

        with run.stage("ablation"):
            tables["ablate"] = ablation_table(run, dataset.samples, dataset.name)
    return tables


def analyse(run: Run, datasets: Sequence[Dataset]) -> None:
    """Compute probes/, samples.parquet and all of tables/ from the states on disk."""
    samples = save_samples(run, datasets)
    tables = [analyse_dataset(run, dataset, train_probes(run, dataset)) for dataset in datasets]
    save_tables(run, join_tables(run, tables), samples)


def join_tables(run: Run, by_dataset: Sequence[Tables]) -> Tables:
    """Concatenate the tables of all datasets, and add those that compare datasets."""
    names = dict.fromkeys(name for tables in by_dataset for name in tables)
    joined = {
        name: pd.concat([t[name] for t in by_dataset if name in t], ignore_index=True)
        for name in names
    }
    return joined | (evidence_across(joined, run.config) if len(by_dataset) > 1 else {})


def save_samples(run: Run, datasets: Sequence[Dataset]) -> pd.DataFrame:
    """Write samples.parquet: the samples of all datasets, each with its fold."""
    frame = to_frame([sample for dataset in datasets for sample in dataset.samples])
    folds = {
        id: int(fold)
        for dataset in datasets
        for id, fold in zip(dataset.answers.ids, dataset.answers.fold, strict=True)
    }
    frame["fold"] = frame["id"].map(folds.get).astype("Int64")
    run.store.write("samples.parquet", frame.to_parquet)
    if run.config.answers is not None:
        off = (frame["off_greedy"] > 0).sum()
        run.progress.note(f"{off} of {len(frame)} given answers are not greedy (off_greedy)")
    return frame


def save_tables(run: Run, tables: Tables, samples: pd.DataFrame) -> None:
    """Write every table under tables/, and the decisions on the claims, claims.csv."""
    with run.stage("tables"):
        for name, table in tables.items():
            if name == "pathways":
                run.store.write("tables/pathways.parquet", table.to_parquet)
            else:
                run.store.write(f"tables/{name}.csv", partial(table.to_csv, index=False))
        claims = claims_table([from_tables(run.store.info, tables, samples)])
        run.store.write("tables/claims.csv", partial(claims.to_csv, index=False))


# Analyse a run without a model, and write the figures and report of any run.


def analyse_given(
    run: Run,
    samples: Sequence[Sample],
    answers: Labelled,
    *,
    title: str,  # of the dataset
    command: str,
    model: dict[str, Any],
) -> None:
    """Analyse the stored states of a run without a model, and describe it in run.json."""
    about = {"name": answers.dataset, "title": title, "questions": len(samples), "dropped": {}}
    run.store.save_info(
        {
            "config": asdict(run.config),
            "command": command,
            "model": model,
            "datasets": [about],
            "versions": versions(),
            "git": git_revision(),
        }
    )
    empty = pd.DataFrame(columns=list(table_columns.SPANS))
    run.store.write("tables/spans.csv", partial(empty.to_csv, index=False))
    analyse(run, [Dataset(samples=samples, answers=answers, shards=1)])


def publish(run: Run, **extras: list[str]) -> RunView:
    """Write the figures and the report, and mark the run as finished; `extras` go to run.json."""
    with run.stage("report"):
        view = RunView.open(run.store.path, unfinished_ok=True)
        write_figures(view)
        write_report(view)
        run.store.add("figures", "report.html")
    run.store.save_info({"finished": True, **extras})
    return RunView.open(run.store.path)


# Recompute the tables in a temporary folder and compare them byte for byte.


def recomputed(path: Path, *, progress: Progress | None = None) -> Iterator[Checked]:
    """Recompute each table of a finished run and compare it with the stored one."""
    view = RunView.open(path, collected_ok=True)
    if not (view.path / "answers").is_dir() or not (view.path / "states").is_dir():
        note = "no answers or no states here (--keep-states none removes them)"
        yield Checked(name="--deep", note=f"{note}: nothing is computed again")
        return
    with tempfile.TemporaryDirectory() as place:
        again = Path(place)
        # A folder with links to the run's answers and states, so that the run is not written to.
        (again / MARKERS).mkdir()
        for name in (*_INPUTS, *(f"{MARKERS}/{name}" for name in _INPUTS)):
            if (view.path / name).is_dir():
                (again / name).symlink_to((view.path / name).absolute())
        _compute(view, again, progress or Quiet())
        names = [file.relative_to(again) for file in sorted(again.rglob("*")) if file.is_file()]
        for name in names:
            if name.parts[0] in ("tables", "probes", "samples.parquet"):
                yield compare_files(view.path, again, name.as_posix())


def _compute(view: RunView, again: Path, progress: Progress) -> None:
    """Recompute in folder `again` every file that follows from the answers and states."""
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
