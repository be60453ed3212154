"""Run a study: every model into its own run folder, then tables and one page over all of them.

A model that fails does not stop the others. The same call continues a stopped study: finished runs
are not done again.
"""

from __future__ import annotations

import gc
import math
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from anchorscope.claims.table import claims_table
from anchorscope.errors import UserError, user_path
from anchorscope.pipeline.run import run
from anchorscope.pipeline.study.file import Study, read_study
from anchorscope.pipeline.study.plan import PlannedRun, plan_study
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.claims import claim_inputs
from anchorscope.show.study import write_page

STUDY = (
    "model", "folder", "panel", "dataset", "state", "error", "n", "right", "wrong", "abstained",
    "layer", "auroc", "auroc_low", "auroc_high", "paper_gap", "strict_gap", "strict_gap_low",
    "strict_gap_high", "finding", "by", "why", "power_half", "power_fifth",
)  # fmt: skip
COSTS = (
    "model", "questions", "tokens", "tokens_plan", "seconds", "model_seconds", "states_seconds",
    "analysis_seconds", "disk", "disk_plan", "peak_memory",
)  # fmt: skip
_STATES = ("preparation", "answers and states")  # stages that read with the model


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """A study's folder, the finished runs by model, and the error of each that failed."""

    path: Path
    runs: Mapping[str, RunView]
    errors: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The run of one model, or the error that ended it."""

    planned: PlannedRun
    view: RunView | None = None
    error: str | None = None
    peak: float = math.nan  # bytes of memory
    disk: float = math.nan  # bytes of its folder


def study(
    study: str | Path | Study,
    *,
    out: str | Path,
    max_hours: float | None = None,
    drop_states: bool = False,
    progress: Progress | None = None,
) -> StudyResult:
    """Run every model of a study in folder `out`, or continue; checked whole before it starts.

    With the option `rank` only that rank's shards of each run are computed, and no run is finished.

    Args:
        study: A shipped name, a .toml file, or a `Study`.
        out: The folder of the study; each run has a folder in it.
        max_hours: No model starts once these are spent, or where a run that has begun needs more.
        drop_states: Remove the states of each run when it is finished: they are most of the disk,
            and only a further analysis would read them again.
        progress: A listener to stages and notes; silent without one.

    Returns:
        The finished runs by model, and the error of each that failed.

    Examples:
        >>> import anchorscope as anc
        >>> result = anc.study("quick", out="runs/quick")  # doctest: +SKIP
        >>> result.runs["SmolLM2-135M-Instruct"].delta_p()  # doctest: +SKIP

    """
    study = study if isinstance(study, Study) else read_study(study)
    folder, progress, begun = user_path(out), progress or Quiet(), time.monotonic()
    plan = plan_study(study, folder, max_hours=max_hours, drop_states=drop_states)
    plan.require_sound()
    by_rank = any(planned.config.rank is not None for planned in plan.runs)
    outcomes: list[Outcome] = []
    for number, planned in enumerate(plan.runs, start=1):
        name = planned.model.name
        progress.note(f"{name} ({number} of {len(plan.runs)})")
        hours = (time.monotonic() - begun) / 3600 + (planned.hours or 0)
        if max_hours is not None and hours > max_hours and not planned.finished:
            error = f"not started, since --max-hours is {max_hours:g}. The same command continues."
            outcomes.append(Outcome(planned=planned, error=error))
        else:
            outcomes.append(_run_or_error(planned, folder, progress))
            gc.collect()  # here, where no frame and no traceback holds the model any more
            torch.cuda.empty_cache()  # nothing, where there is no GPU
        if by_rank:  # nothing is finished until the study is run without a rank
            continue
        if drop_states and outcomes[-1].view is not None:
            shutil.rmtree(folder / name / "states", ignore_errors=True)
        write_costs(folder, outcomes)
    errors = {o.planned.model.name: o.error for o in outcomes if o.error is not None}
    if by_rank:
        return StudyResult(path=folder, runs={}, errors=errors)
    _write_overview(study, folder, outcomes)
    views = {o.planned.model.name: o.view for o in outcomes if o.view is not None}
    return StudyResult(path=folder, runs=views, errors=errors)


# --- The run of one model ---


def _run_or_error(planned: PlannedRun, folder: Path, progress: Progress) -> Outcome:
    """One model's run, or the error that ended it, with its traceback in errors/<model>.txt."""
    name = planned.model.name
    report = folder / "errors" / f"{name}.txt"
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    view, message = None, None
    try:
        view = run(out=folder / name, config=planned.config, progress=progress)
        # A file may be called anything: over all runs a model has the study's name for it.
        view = RunView(view.path, {**view.info, "model": {**view.model, "name": name}})
        report.unlink(missing_ok=True)
    except Exception as error:  # whatever it is, the other models go on
        line = next(iter(str(error).strip().splitlines()), "")
        user_mistake = isinstance(error, UserError)  # which is a sentence already
        message = str(error) if user_mistake else f"{type(error).__name__}: {line}"
        progress.note(f"{name} failed: {message}")
        with suppress(UserError):  # a full disk must not hide the error
            write_atomic(report, "".join(traceback.format_exception(error)))
    disk = 0.0
    for file in (folder / name).rglob("*"):
        with suppress(FileNotFoundError):  # another rank may rename its files meanwhile
            disk += file.stat().st_size if file.is_file() else 0
    return Outcome(planned=planned, view=view, error=message, peak=peak_memory(), disk=disk)


def peak_memory() -> float:
    """The most bytes held at once: of the GPU where there is one, else of this process."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:  # not on Windows
        return math.nan
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


# --- The files over all runs: study.csv, claims.csv, costs.csv, figures/, study.html ---


def _write_overview(study: Study, folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Write study.csv, claims.csv and figures/, then study.html, which shows them."""
    rows = [row for outcome in outcomes for row in _study_rows(outcome)]
    table = pd.DataFrame(rows, columns=list(STUDY))
    write_atomic(folder / "study.csv", table.to_csv(index=False))
    panels = {
        title: runs
        for title in study.panels
        if (runs := [o.view for o in outcomes if o.view and o.planned.model.panel == title])
    }
    claims = study_claims(panels)
    if claims is not None:
        write_atomic(folder / "claims.csv", claims.to_csv(index=False))
    write_page(
        folder,
        study.title,
        panels=panels,
        failed={o.planned.model.name: o.error for o in outcomes if o.error is not None},
        table=table,
        claims=claims,
        costs=read_costs(folder / "costs.csv"),
    )


def _study_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """A row of study.csv for each dataset; a model that failed has its error in each of them."""
    model, view = outcome.planned.model, outcome.view
    about = {"model": model.name, "folder": model.name, "panel": model.panel}
    if view is None:
        about |= {"state": "failed", "error": outcome.error}
        return [{**about, "dataset": one.name} for one in outcome.planned.sets]
    about |= {"state": "finished", "error": ""}
    rows = []
    for dataset in view.titles:
        verdicts = Counter(values(where(view.samples, dataset=dataset), "verdict"))
        (found,) = records(where(view.findings, dataset=dataset))
        at = {"dataset": dataset, "layer": found["layer"]}
        (probe,) = records(where(view.probes, **at))
        paper = where(view.layers, mode="paper", **at).set_index("pathway")["delta_p"]
        row = about | {
            "dataset": dataset,
            "right": verdicts["right"],
            "wrong": verdicts["wrong"],
            "abstained": verdicts["abstain"],
            **{name: probe[name] for name in ("auroc", "auroc_low", "auroc_high")},
            "paper_gap": paper["Q"] - paper["A"],
        }
        row |= {f"strict_{name}": found[name] for name in ("gap", "gap_low", "gap_high")}
        same = ("n", "layer", "finding", "by", "why", "power_half", "power_fifth")
        rows.append(row | {name: found[name] for name in same})
    return rows


def study_claims(panels: Mapping[str, Sequence[RunView]]) -> pd.DataFrame | None:
    """One table of all claims; models are compared by size within their panel only."""
    inputs = [[claim_inputs(run) for run in panel] for panel in panels.values()]
    every = [each for panel in inputs for each in panel]
    return claims_table(every, compared=inputs) if every else None


def write_costs(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Write costs.csv: what each run took, beside the plan's tokens and bytes."""
    file = folder / "costs.csv"
    try:
        before = {str(row["model"]): row for row in records(read_costs(file))}
    except (OSError, ValueError, KeyError):  # not there yet, or damaged: then nothing is kept of it
        before = {}
    rows = []
    for outcome in outcomes:
        kept = before.get(outcome.planned.model.name) if outcome.planned.finished else None
        rows.append(kept or _cost_row(outcome))  # a finished run took nothing now
    write_atomic(file, pd.DataFrame(rows, columns=list(COSTS)).to_csv(index=False))


def read_costs(file: Path) -> pd.DataFrame:
    """The table of costs.csv; names are text, also of a model called NA, 007 or 1e5."""
    empty: Any = {name: ["", "nan"] for name in COSTS if name != "model"}
    return pd.read_csv(file, dtype={"model": str}, keep_default_na=False, na_values=empty)


def _cost_row(outcome: Outcome) -> dict[str, Any]:
    planned, view = outcome.planned, outcome.view
    stages: dict[str, dict[str, float]] = view.info["stages"] if view else {}

    def seconds(names: Sequence[str]) -> float:
        spent = [stages[name]["seconds"] for name in names if name in stages]
        return sum(spent) if spent else math.nan

    analysis = [name for name in stages if name not in (*_STATES, "model", "report")]
    return {
        "model": planned.model.name,
        "questions": planned.cost.questions,
        "tokens": sum(stage["tokens"] for stage in stages.values()) or math.nan,
        "tokens_plan": planned.cost.tokens,
        "seconds": seconds(list(stages)),
        "model_seconds": seconds(["model"]),
        "states_seconds": seconds(_STATES),
        "analysis_seconds": seconds(analysis),
        "disk": outcome.disk,
        "disk_plan": planned.cost.disk,
        "peak_memory": outcome.peak,
    }
