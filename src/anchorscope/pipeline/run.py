"""The order of a run: questions, answers and states, probes, tables, figures, report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from anchorscope.config import Config
from anchorscope.engine.passes import passes_of
from anchorscope.evidence.pieces import probed_of
from anchorscope.parallel import dismiss_workers
from anchorscope.pipeline.ablate import ablation_tables, read_variants, variants_of
from anchorscope.pipeline.analyse import (
    output_tables,
    pathway_tables,
    save_rest,
    save_samples,
    save_tables,
    train_and_read,
)
from anchorscope.pipeline.checks.early import check_run
from anchorscope.pipeline.evidence import (
    read_evidence,
    read_evidence_with_probes,
    tables_of_evidence,
)
from anchorscope.pipeline.request import Questions, resolve
from anchorscope.pipeline.reuse.take_over import check_reuse, take_over
from anchorscope.pipeline.robust import TABLE, Choice, robust_tables, write_robust
from anchorscope.pipeline.robust_asked import ask_otherwise
from anchorscope.pipeline.shard import ask_and_read
from anchorscope.pipeline.spread.beside import Analysed, Beside, fit_device, started_early
from anchorscope.pipeline.spread.by_rank import read_of_rank
from anchorscope.pipeline.spread.lend import lent
from anchorscope.pipeline.spread.machine import check_spread
from anchorscope.pipeline.stages import Run
from anchorscope.probes.at_once import fits_on, fitted_on
from anchorscope.probes.labelled import Labelled, labelled
from anchorscope.probes.readings import Readings
from anchorscope.progress import Progress, Quiet
from anchorscope.records import QuestionSet, Sample
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView
from anchorscope.show import write_figures, write_report


def run(
    model: Any = None,
    questions: Questions | Sequence[QuestionSet] | None = None,
    *,
    out: str | Path,
    config: Config | None = None,
    progress: Progress | None = None,
) -> RunView:
    """The finished run in folder `out`; continued where it stopped if it is there already.

    `model` (a name, a transformers model, or what `load_model` gave) and `questions` (a name, a
    file, a list, or what `load_questions` gave) stand above what `config` says of them.

    Examples:
        >>> import anchorscope as anc
        >>> questions = anc.load_questions("atlas", limit=56)  # far too few for a finding
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
    # What is wrong with the choices is said before anything slow starts, and leaves no folder.
    variants_of(config)
    check_spread(config, model)
    check_reuse(config.reuse, identity)
    check_run(config, sets, out, model)
    store = Store.open(out, identity)
    run = Run(store=store, config=config, sets=sets, progress=progress or Quiet())
    if config.rank is not None:
        read_of_rank(run, model)
        return RunView.open(store.path, unfinished_ok=True)
    if not _finished(run):
        with store.owned(withdraw=True):
            _go(run, model)
    elif config.robust and not store.has(TABLE):
        with store.owned():
            _add_robust(run, model)
    return RunView.open(store.path)


def _finished(run: Run) -> bool:
    info = run.store.info
    there = (set(asked) <= set(info.get(name, ())) for name, asked in _extras(run.config).items())
    return bool(info.get("finished")) and all(there) and run.whole()


def _go(run: Run, model: Any) -> None:
    """Every stage in turn; on a GPU a dataset is analysed while the next one is read."""
    with ExitStack() as fits:  # may be made on the model's GPU, also when the model is given back
        fits.enter_context(started_early(run, model))
        with lent(run, model) as (run, lease, shards):
            take_over(run, shards)
            fits.enter_context(fits_on(fit_device(lease)))
            with Beside(run, lease) as beside:
                samples = ask_and_read(
                    run, lease, shards, passes_of(run.config), on_dataset=beside.on_dataset
                )
                answers = [labelled(samples, dataset, run.config) for dataset in run.datasets]
                read_variants(run, lease, shards)
                read_evidence(run, lease, shards, samples)
                frame = save_samples(run, samples, answers)
            done, passes = beside.done, probed_of(run.config)
            readings = train_and_read(run, answers, passes=passes, done=done.readings)
            read_evidence_with_probes(run, lease, shards, samples, answers, readings)
            asked = ask_otherwise(run, lease, shards, samples) if run.config.robust else []
        _finish(run, samples, frame, answers, readings, done, asked, shards=len(shards))


def _finish(
    run: Run,
    samples: Sequence[Sample],
    frame: pd.DataFrame,
    answers: Sequence[Labelled],
    readings: Mapping[str, Readings],
    done: Analysed,
    asked: Sequence[Choice],
    *,
    shards: int,
) -> None:
    """Everything that needs the model no more: tables, figures, report."""
    tables = pathway_tables(run, answers, readings, done=done.pathways)
    tables |= tables_of_evidence(run, answers, readings, samples, shards=shards, done=done.evidence)
    tables |= ablation_tables(run, answers, shards=shards)
    tables |= output_tables(run, answers, samples, tables, shards=shards)
    if run.config.robust:
        tables |= robust_tables(run, samples, asked, datasets=run.datasets)
    place = fitted_on()
    if place or run.store.info.get("fits_on"):  # which a run on another device may have left
        run.store.save_info({"fits_on": place})
    save_tables(run, tables)
    # Figures do without the rest, and other processes draw them.
    _show(run, workers=done.workers, meanwhile=partial(save_rest, run, tables, frame))


def _add_robust(run: Run, model: Any) -> None:
    """A finished run with robust.csv beside its other tables, which stay as they are."""
    before = {"ablate": run.store.info.get("ablated", ()), "evidence": run.store.info["evidence"]}
    run = replace(run, config=replace(run.config, **{n: tuple(of) for n, of in before.items()}))
    with lent(run, model) as (run, lease, shards):
        samples = ask_and_read(run, lease, shards, passes_of(run.config))  # from disk
        asked = ask_otherwise(run, lease, shards, samples)
    write_robust(run.store, robust_tables(run, samples, asked, datasets=run.datasets))
    _show(run)


def _show(
    run: Run, *, workers: int | None = None, meanwhile: Callable[[], None] | None = None
) -> None:
    """The figures and the report, and the run marked as finished.

    `workers`: how many processes are there already; another number of them would be started anew.
    `meanwhile`: what the report needs and the figures do not.
    """
    with run.stage("report"):
        view = RunView.open(run.store.path, unfinished_ok=True)
        with ThreadPoolExecutor(1, "figures") as pool:  # which waits for other processes
            drawn = pool.submit(_draw, view, workers)
            if meanwhile is not None:
                meanwhile()
            if find_spec("plotly") is None:
                missing = "report.html needs the package plotly, which is not here: left out"
                run.progress.note(missing)
            else:
                write_report(view)
            drawn.result()
    run.store.save_info({"finished": True, **_extras(run.config)})


def _draw(view: RunView, workers: int | None) -> None:
    """Writes the figures, and has no more use for processes that were there already."""
    write_figures(view, workers=workers)
    if workers is not None:
        dismiss_workers()


def _extras(config: Config) -> dict[str, list[str]]:
    """What may be added to a finished run, by its name in run.json."""
    return {"ablated": list(config.ablate), "evidence": list(config.evidence)}
