"""Plan and run a study: one run folder for each model, then tables and one page over all runs.

A plan lists a study's problems, and estimates the disk space and hours of each run. No weights are
read or downloaded for it: sizes come from the models' configs. Hours are given only for a run that
has begun, at the speed of the shards that it has read.

A model that fails does not stop the others. The same call continues a stopped study: finished runs
are not repeated.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch

from anchorscope.claims.table import claims_table
from anchorscope.config import Config
from anchorscope.datasets.packed import split_sets
from anchorscope.errors import UserError, user_path
from anchorscope.models.load import read_shape
from anchorscope.pipeline.read_states import count_passes
from anchorscope.pipeline.request import question_sets, resolve
from anchorscope.pipeline.run import run
from anchorscope.pipeline.study.file import Study, StudyModel, read_study
from anchorscope.progress import Progress, Quiet
from anchorscope.records import QuestionSet
from anchorscope.run_folder.disk import GB, check_room, check_writable, disk_bytes, write_atomic
from anchorscope.run_folder.manifest import REMAINING, read_info
from anchorscope.run_folder.view import RunView
from anchorscope.show.claims import claim_inputs
from anchorscope.show.study import cost_row, dataset_rows, write_page

STUDY = (
    "model", "folder", "panel", "dataset", "state", "error", "n", "right", "wrong", "abstained",
    "layer", "auroc", "auroc_low", "auroc_high", "paper_gap", "strict_gap", "strict_gap_low",
    "strict_gap_high", "finding", "by", "why", "power_half", "power_fifth",
)  # fmt: skip
Result = TypeVar("Result")


# --- The plan ---


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One model of a study, the config of its run, and that run's disk space and hours."""

    model: StudyModel
    config: Config
    sets: Sequence[QuestionSet]
    disk: float  # bytes of the run folder
    hours: float | None  # of reading left, at measured speed; None: no speed is measured
    finished: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every run of a study, and the study's problems."""

    runs: Sequence[PlannedRun]
    problems: Sequence[str]

    def require_sound(self) -> None:
        """Raise a UserError that lists all problems, if there are any."""
        if self.problems:
            lines = "\n".join(f"- {problem}" for problem in self.problems)
            count = len(self.problems)
            raise UserError(f"The study was not started. To fix ({count}):\n{lines}")


def plan_study(study: Study, out: Path, *, check_disk: bool = True) -> Plan:
    """Plan a study in folder `out`; no run is started and no folder is made."""
    problems: list[str] = []

    def attempt(name: str, make: Callable[[], Result]) -> Result | None:
        try:
            return make()
        except UserError as error:
            problems.append(f"{name}: {error}")
            return None

    try:
        first = study.config(study.models[0])
    except UserError:  # which is a problem of that model
        first = Config()
    loaded = [
        attempt(name, lambda name=name: question_sets(None, replace(first, data=(name,))))
        for name in study.data
    ]
    sets = [questions for some in loaded for questions in some or ()]
    names = [questions.name for questions in sets]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(f"Two question sets are named '{name}'. Rename a file.")
    planned = [
        attempt(model.name, lambda model=model: _plan_run(study, model, sets, out / model.name))
        for model in study.models
    ]
    runs = [run for run in planned if run is not None]
    left = [run for run in runs if not run.finished]
    removed = [run.disk for run in left if run.config.keep_states == "none"]
    kept = sum(run.disk for run in left) - sum(removed)
    if check_disk:
        attempt("--out", lambda: check_writable(out))
        attempt("--out", lambda: check_room(out, kept + max(removed, default=0.0)))
    return Plan(runs=runs, problems=problems)


def _plan_run(
    study: Study, model: StudyModel, sets: Sequence[QuestionSet], folder: Path
) -> PlannedRun:
    """Plan the run of one model."""
    config = study.config(model)
    trusted = config.trust_remote_code
    shape = read_shape(config.model, revision=config.revision, trusted=trusted)
    if config.verdicts and len(sets) == len(study.data):
        resolve(None, list(sets), config)  # raises an error where they are on other questions
    info = (read_info(folder) if folder.is_dir() else None) or {}
    finished = bool(info.get("finished"))
    learnt, further = split_sets(sets, config.learn_from)
    return PlannedRun(
        model=model,
        config=config,
        sets=sets,
        disk=disk_bytes(
            sum(map(len, learnt)),
            sum(map(len, further)),
            *shape,
            count_passes(config),
            all_states=config.keep_states == "all",
        ),
        hours=None if finished else _hours_left(folder, info, [*learnt, *further]),
        finished=finished,
    )


def _hours_left(folder: Path, info: dict[str, Any], sets: Sequence[QuestionSet]) -> float | None:
    """Estimate the hours of reading left in a run; None before its first shard."""
    stages = info.get("stages", {})
    names = ("answers and states", "remaining questions")
    spent = sum(stages.get(name, {}).get("seconds", 0.0) for name in names)
    read = sum(len(list((folder / part / "answers").glob("*.parquet"))) for part in ("", REMAINING))
    if not spent or not read or "shard" not in info:
        return None
    shards = sum(-(-len(questions) // info["shard"]) for questions in sets)
    return max(0, shards - read) * spent / read / 3600


def plan_rows(plan: Plan) -> list[dict[str, str]]:
    """The plan as table rows, one for each model: questions, disk space, hours left."""
    return [
        {
            "model": run.model.name,
            # A model's name in the study need not say what is loaded.
            "loads": " ".join(
                filter(None, (run.config.model, run.config.revision, run.config.adapter))
            ),
            "questions": f"{sum(map(len, run.sets)):,}",
            "GB of disk": f"{run.disk / GB:.2f}",
            "finished": "yes" if run.finished else "",
            "hours left": "" if run.hours is None else f"{run.hours:.2f}",
        }
        for run in plan.runs
    ]


# --- The runs ---


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """A study's folder, the finished runs by model, and the error of each that failed."""

    path: Path
    runs: Mapping[str, RunView]
    errors: Mapping[str, str]


Outcome = RunView | str  # the run of one model, or the error that ended it


def study(
    study: str | Path | Study,
    *,
    out: str | Path,
    progress: Progress | None = None,
) -> StudyResult:
    """Run every model of a study in folder `out`, or continue; checked whole before it starts.

    With the option `rank` only that rank's shards of each run are computed, and no run is finished.

    Args:
        study: A shipped name, a .toml file, or a `Study`.
        out: The folder of the study; each run has a folder in it.
        progress: A listener to stages and notes; silent without one.

    Returns:
        The finished runs by model, and the error of each that failed.

    Examples:
        >>> import anchorscope as anc
        >>> result = anc.study("quick", out="runs/quick")  # doctest: +SKIP
        >>> result.runs["SmolLM2-135M-Instruct"].delta_p()  # doctest: +SKIP

    """
    study = study if isinstance(study, Study) else read_study(study)
    folder, progress = user_path(out), progress or Quiet()
    plan = plan_study(study, folder)
    plan.require_sound()
    by_rank = any(planned.config.rank is not None for planned in plan.runs)
    outcomes: dict[str, Outcome] = {}
    for number, planned in enumerate(plan.runs, start=1):
        name = planned.model.name
        progress.note(f"{name} ({number} of {len(plan.runs)})")
        outcomes[name] = _run_or_error(planned, folder, progress)
        gc.collect()  # here no frame and no traceback holds the model any more
        torch.cuda.empty_cache()  # does nothing without a GPU
    if not by_rank:
        _write_overview(study, plan, folder, outcomes)
    finished = outcomes.items() if not by_rank else ()
    runs = {name: run for name, run in finished if isinstance(run, RunView)}
    errors = {name: error for name, error in outcomes.items() if isinstance(error, str)}
    return StudyResult(path=folder, runs=runs, errors=errors)


def _run_or_error(planned: PlannedRun, folder: Path, progress: Progress) -> Outcome:
    """Run one model; return the run, or its error (with the traceback in errors/<model>.txt)."""
    name = planned.model.name
    report = folder / "errors" / f"{name}.txt"
    try:
        view = run(out=folder / name, config=planned.config, progress=progress)
    except Exception as error:  # any error: the other models go on
        line = next(iter(str(error).strip().splitlines()), "")
        user_mistake = isinstance(error, UserError)  # which is a sentence already
        message = str(error) if user_mistake else f"{type(error).__name__}: {line}"
        progress.note(f"{name} failed: {message}")
        with suppress(UserError):  # a full disk must not hide the error
            write_atomic(report, "".join(traceback.format_exception(error)))
        return message
    report.unlink(missing_ok=True)
    # The tables over all runs use the study's name for a model, not that of its file.
    return RunView(view.path, {**view.info, "model": {**view.model, "name": name}})


# --- The files over all runs: study.csv, claims.csv, costs.csv, figures/, study.html ---


def _write_overview(
    study: Study, plan: Plan, folder: Path, outcomes: Mapping[str, Outcome]
) -> None:
    """Write study.csv, claims.csv, costs.csv and figures/, then study.html, which shows them."""
    rows = [row for run in plan.runs for row in _study_rows(run, outcomes[run.model.name])]
    table = pd.DataFrame(rows, columns=list(STUDY))
    write_atomic(folder / "study.csv", table.to_csv(index=False))
    shown: dict[str, list[RunView]] = {}
    for title, models in study.panels.items():
        views = [outcomes[model.name] for model in models if model.name in outcomes]
        if runs := [view for view in views if isinstance(view, RunView)]:
            shown[title] = runs
    costs = pd.DataFrame([cost_row(run) for runs in shown.values() for run in runs])
    write_atomic(folder / "costs.csv", costs.to_csv(index=False))
    # Models are compared by size within their panel only.
    inputs = [[claim_inputs(run) for run in runs] for runs in shown.values()]
    every = [each for panel in inputs for each in panel]
    claims = claims_table(every, compared=inputs) if every else None
    if claims is not None:
        write_atomic(folder / "claims.csv", claims.to_csv(index=False))
    write_page(
        folder,
        study.title,
        panels=shown,
        failed={name: error for name, error in outcomes.items() if isinstance(error, str)},
        table=table,
        claims=claims,
        costs=costs,
    )


def _study_rows(planned: PlannedRun, view: Outcome) -> list[dict[str, Any]]:
    """A row of study.csv for each dataset; a model that failed has its error in each of them."""
    model = planned.model
    about = {"model": model.name, "folder": model.name, "panel": model.panel}
    if isinstance(view, str):
        about |= {"state": "failed", "error": view}
        return [{**about, "dataset": one.name} for one in planned.sets]
    about |= {"state": "finished", "error": ""}
    return [{**about, **row} for row in dataset_rows(view)]
