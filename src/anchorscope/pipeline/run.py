"""The order of a run: questions, answers and states, probes, tables, figures, report."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from anchorscope.config import Config
from anchorscope.pipeline import analyse, executor, variants
from anchorscope.pipeline.read_states import (
    Reader,
    read_evidence,
    read_states,
    read_with_probes,
)
from anchorscope.pipeline.request import Questions, Run, check_run, resolve
from anchorscope.progress import Progress
from anchorscope.run_folder.samples import stored_samples
from anchorscope.run_folder.view import RunView


def run(
    model: Any = None,
    questions: Questions | None = None,
    *,
    out: str | Path,
    config: Config | None = None,
    progress: Progress | None = None,
) -> RunView:
    """Make a run in folder `out`, or continue it where it stopped.

    Args:
        model: A name, a transformers model, or what `load_model` gave; replaces `config.model`.
        questions: A name, a file, a list, or what `load_questions` gave; replaces `config.data`.
        out: The run folder.
        config: All other choices.
        progress: A listener to stages and notes; silent without one.

    Returns:
        The finished run.

    Examples:
        >>> import anchorscope as anc
        >>> questions = anc.load_questions("atlas", limit=72)  # far too few for a finding
        >>> small = anc.Config(
        ...     prompt="text", max_tokens=8, folds=3, fold_seeds=1, resamples=100
        ... )
        >>> run = anc.run(model, questions, out="runs/atlas", config=small)
        >>> run.findings["finding"].tolist()
        ['too-few']
        >>> sorted(run.samples["verdict"].unique())
        ['right', 'wrong']

    """
    config, sets, identity = resolve(model, questions, config or Config())
    # What is wrong with the choices is an error before anything slow starts, and leaves no folder.
    variants.ablated_choices(config)
    executor.check_spread(config, model)
    variants.check_reuse(config.reuse, identity)
    room = check_run(config, sets, out, model)
    run = Run.open(out, identity, config, sets, progress)
    if room:
        run.progress.note(room)
    if config.rank is not None:
        with executor.open_reader(run, model) as reader:
            _read(run, reader)
        return RunView.open(run.store.path, unfinished_ok=True)
    if not _finished(run):
        with run.store.owned(withdraw=True):
            _read_and_analyse(run, model)
    elif config.robust and not run.store.has(variants.ROBUST_TABLE):
        with run.store.owned():
            _add_robust(run, model)
    return RunView.open(run.store.path)


def _read_and_analyse(run: Run, model: Any) -> None:
    with executor.open_reader(run, model) as reader:
        with executor.analysed_meanwhile(run, reader) as tables:
            _read(run, reader)
        datasets = analyse.stored_datasets(run)
        frame = analyse.save_samples(run, datasets)
        left = [dataset for dataset in datasets if dataset.name not in tables]
        readings = {dataset.name: analyse.train_probes(run, dataset) for dataset in left}
        read_with_probes(run, reader, readings)
        reworded = variants.read_reworded(run, reader) if run.config.robust else []
    for dataset in left:
        tables[dataset.name] = analyse.analyse_dataset(run, dataset, readings[dataset.name])
    joined = analyse.join_tables(run, [tables[dataset.name] for dataset in datasets])
    if run.config.robust:
        samples = {dataset.name: dataset.samples for dataset in datasets}
        joined["robust"] = variants.robust_table(run, samples, reworded)
    analyse.save_tables(run, joined, frame)
    analyse.publish(run, **_extras(run.config))


def _read(run: Run, reader: Reader) -> None:
    """Read everything that needs the model and no probe."""
    variants.copy_reused(run, reader.shards)
    read_states(run, reader)
    variants.read_ablated(run, reader)
    read_evidence(run, reader)


def _add_robust(run: Run, model: Any) -> None:
    """Add robust.csv to a finished run, whose other tables stay as they are."""
    info = run.store.info
    ablate, evidence = tuple(info.get("ablated", ())), tuple(info["evidence"])
    run = replace(run, config=replace(run.config, ablate=ablate, evidence=evidence))
    with executor.open_reader(run, model) as reader:
        reworded = variants.read_reworded(run, reader)
    table = variants.robust_table(run, stored_samples(run.store), reworded)
    run.store.write(variants.ROBUST_TABLE, partial(table.to_csv, index=False))
    analyse.publish(run, **_extras(run.config))


def _finished(run: Run) -> bool:
    info = run.store.info
    there = (set(names) <= set(info.get(key, ())) for key, names in _extras(run.config).items())
    return bool(info.get("finished")) and all(there) and run.whole()


def _extras(config: Config) -> dict[str, list[str]]:
    """What may be added to a finished run, by its name in run.json."""
    return {"ablated": list(config.ablate), "evidence": list(config.evidence)}
