"""Make a run: questions, answers and states, probes, tables, figures, report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from anchorscope.config import Config
from anchorscope.datasets.packed import split_sets
from anchorscope.evidence.pieces import passes_of_pieces
from anchorscope.pipeline import analyse, executor, variants
from anchorscope.pipeline.read_states import (
    Reader,
    count_passes,
    read_pieces,
    read_remaining,
    read_states,
)
from anchorscope.pipeline.request import Questions, Run, check_questions, resolve
from anchorscope.progress import Progress
from anchorscope.run_folder.view import ROBUST_TABLE, RunView


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
        ...     prompt="text", max_tokens=8, folds=3, fold_seeds=1, resamples=100, evidence=()
        ... )
        >>> run = anc.run(model, questions, out="runs/atlas", config=small)
        >>> run.findings["finding"].tolist()
        ['too-few']
        >>> sorted(run.samples["verdict"].unique())
        ['right', 'wrong']

    """
    config, sets, identity = resolve(model, questions, config or Config())
    # Wrong options are an error before anything slow starts, and leave no folder.
    variants.ablated_choices(config)
    executor.check_spread(config, model)
    variants.check_reuse(config.reuse, identity)
    sets, remaining = split_sets(sets, config.learn_from)
    check_questions(config, sets)
    passes = count_passes(config)
    if remaining:
        identity |= {"learn_from": config.learn_from}
    run = Run.open(
        out, identity, config, sets, progress, remaining=remaining, model=model, passes=passes
    )
    if config.rank is not None:
        with executor.open_reader(run, model) as reader:
            _read(run, reader)
        return RunView.open(run.store.path, unfinished_ok=True)
    run = _with_extras(run)
    if not _finished(run):
        with run.store.owned(withdraw=True):
            _read_and_analyse(run, model)
    if config.keep_states == "none":
        with run.store.owned():
            run.store.remove_states()
    return RunView.open(run.store.path)


def _read_and_analyse(run: Run, model: Any) -> None:
    with executor.open_reader(run, model) as reader:
        with executor.analysed_meanwhile(run, reader) as tables:
            _read(run, reader)
        datasets = analyse.stored_datasets(run)
        frame = analyse.save_samples(run, datasets)
        left = [dataset for dataset in datasets if dataset.name not in tables]
        readings = {dataset.name: analyse.train_probes(run, dataset) for dataset in left}
        read_pieces(run, reader, run.config.evidence, readings)
        reworded = variants.read_reworded(run, reader) if run.config.robust else []
        read_remaining(run, reader)
    for dataset in left:
        tables[dataset.name] = analyse.analyse_dataset(run, dataset, readings[dataset.name])
    joined = analyse.join_tables(run, [tables[dataset.name] for dataset in datasets])
    if run.config.robust:
        samples = {dataset.name: dataset.samples for dataset in datasets}
        joined["robust"] = variants.robust_table(run, samples, reworded)
    analyse.save_tables(run, joined, frame)
    analyse.publish(run, ablated=[*run.config.ablate], evidence=[*run.config.evidence])


def _read(run: Run, reader: Reader) -> None:
    """Read everything that needs the model and no probe."""
    variants.copy_reused(run, reader.shards)
    read_states(run, reader)
    variants.read_ablated(run, reader)
    if passes := passes_of_pieces(run.config):
        read_states(run, reader, passes, name="further passes")
    read_pieces(run, reader, run.config.evidence)


def _with_extras(run: Run) -> Run:
    """Add to the config the ablations, evidence and robust table that the run already has."""
    has, config = run.store.info, run.config
    ablate = tuple(dict.fromkeys((*has.get("ablated", ()), *config.ablate)))
    evidence = tuple(dict.fromkeys((*has.get("evidence", ()), *config.evidence)))
    robust = config.robust or run.store.has(ROBUST_TABLE)
    return replace(run, config=replace(config, ablate=ablate, evidence=evidence, robust=robust))


def _finished(run: Run) -> bool:
    info, config = run.store.info, run.config
    if config.keep_states == "all" and not run.store.has_states(remaining=bool(run.remaining)):
        return False
    there = info.get("ablated") == [*config.ablate] and info.get("evidence") == [*config.evidence]
    robust = run.store.has(ROBUST_TABLE) or not config.robust
    return bool(info.get("finished")) and there and robust and run.whole()
