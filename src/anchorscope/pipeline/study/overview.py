"""The files over all runs of a study: study.csv, claims.csv, costs.csv, figures/, study.html."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from anchorscope.claims.table import claims_table
from anchorscope.pipeline.study.check import Planned
from anchorscope.pipeline.study.file import Study
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.run_folder.whole import put_whole
from anchorscope.show.report.claims import claim_inputs
from anchorscope.show.report.headline import headline
from anchorscope.show.study import Failed, ShownPanel, ShownStudy, write_page

STUDY = (
    "model", "folder", "panel", "dataset", "state", "error", "n", "right", "wrong", "abstained",
    "layer", "auroc", "auroc_low", "auroc_high", "paper_gap", "strict_gap", "strict_gap_low",
    "strict_gap_high", "finding", "by", "why", "power_half", "power_fifth",
)  # fmt: skip
COSTS = (
    "model", "questions", "tokens", "tokens_plan", "seconds", "seconds_plan", "model_seconds",
    "model_seconds_plan", "states_seconds", "states_seconds_plan", "analysis_seconds",
    "analysis_seconds_plan", "disk", "disk_plan", "peak_memory",
)  # fmt: skip
# The stages of a run that the plan counts as one.
_STAGES = {"model": ("model",), "states": ("preparation", "answers and states"),
           "analysis": ("probes", "pathways", "evidence", "evidence tables", "tables")}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one model of a study."""

    planned: Planned
    view: RunView | None
    error: str | None
    peak: float  # bytes of memory
    disk: float  # bytes of its folder


def write_overview(study: Study, folder: Path, outcomes: Sequence[Outcome]) -> Path:
    """The path of study.html, written after the tables and figures that it shows."""
    table = study_table(outcomes)
    _replace(folder / "study.csv", table)
    panels = [
        ShownPanel(title=title, runs=runs)
        for title in study.panels
        if (runs := [o.view for o in outcomes if o.view and o.planned.model.panel == title])
    ]
    claims = study_claims(panels)
    if claims is not None:
        _replace(folder / "claims.csv", claims)
    shown = ShownStudy(
        title=study.title,
        folder=folder,
        panels=panels,
        failed=[Failed(o.planned.model.name, o.error) for o in outcomes if o.error is not None],
        table=table,
        claims=claims,
        costs=_costs(folder / "costs.csv"),
    )
    return write_page(shown)


def study_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row a model and dataset; a model that failed has its error in each of its rows."""
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        rows += _failed(outcome) if outcome.view is None else _finished(outcome, outcome.view)
    return pd.DataFrame(rows, columns=list(STUDY))


def _failed(outcome: Outcome) -> list[dict[str, Any]]:
    model = outcome.planned.model
    about = {"model": model.name, "folder": model.name, "panel": model.panel}
    state = {"state": "failed", "error": outcome.error}
    return [{**about, "dataset": of.dataset, **state} for of in outcome.planned.counts]


def _finished(outcome: Outcome, view: RunView) -> list[dict[str, Any]]:
    model = outcome.planned.model
    about = {"model": view.model_name, "folder": model.name, "panel": model.panel}
    return [
        {**about, "dataset": name, "state": "finished", "error": "", **_numbers(view, name, title)}
        for name, title in view.titles.items()
    ]


def _numbers(view: RunView, dataset: str, title: str) -> dict[str, Any]:
    """The counts of verdicts, and the finding with the numbers at its layer."""
    verdicts = Counter(values(where(view.samples, dataset=dataset), "verdict"))
    (found,) = records(where(view.findings, dataset=dataset))
    head = headline(view, dataset, title)
    return {
        "n": found["n"],
        "right": verdicts["right"],
        "wrong": verdicts["wrong"],
        "abstained": verdicts["abstain"],
        "layer": found["layer"],
        "auroc": head.auroc.value,
        "auroc_low": head.auroc.low,
        "auroc_high": head.auroc.high,
        "paper_gap": head.paper_gap.value,
        "strict_gap": found["gap"],
        "strict_gap_low": found["gap_low"],
        "strict_gap_high": found["gap_high"],
        **{name: found[name] for name in ("finding", "by", "why", "power_half", "power_fifth")},
    }


def study_claims(panels: Sequence[ShownPanel]) -> pd.DataFrame | None:
    """One table of all claims; models are compared by size within their panel only."""
    inputs = [[claim_inputs(run) for run in panel.runs] for panel in panels]
    every = [each for panel in inputs for each in panel]
    return claims_table(every, compared=inputs) if every else None


def write_costs(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """costs.csv: what each run took, beside what the plan said of it."""
    file = folder / "costs.csv"
    try:
        before = _costs(file).set_index("model")
    except (OSError, ValueError, KeyError):  # not there yet, or damaged: then nothing is kept of it
        before = pd.DataFrame()
    rows = [_cost(outcome, before) for outcome in outcomes]
    _replace(file, pd.DataFrame(rows, columns=list(COSTS)))


def _costs(file: Path) -> pd.DataFrame:
    """The table; names are text: a model called NA, 007 or 1e5 is called so."""
    empty: Any = {name: ["", "nan"] for name in COSTS if name != "model"}
    return pd.read_csv(file, dtype={"model": str}, keep_default_na=False, na_values=empty)


def _cost(outcome: Outcome, before: pd.DataFrame) -> dict[str, Any]:
    name, forecast = outcome.planned.model.name, outcome.planned.forecast
    stages = outcome.view.info["stages"] if outcome.view else {}
    taken = {"disk": outcome.disk, "peak_memory": outcome.peak}
    if outcome.planned.finished and name in before.index:  # it took nothing now
        taken |= {column: before[column][name] for column in taken if column in before}
    row: dict[str, Any] = {
        "model": name,
        "questions": sum(of.questions for of in outcome.planned.counts),
        "tokens": sum(stage["tokens"] for stage in stages.values()) or math.nan,
        "seconds": _seconds(stages, tuple(stages)),
        **taken,
    }
    row |= {f"{part}_seconds": _seconds(stages, names) for part, names in _STAGES.items()}
    if forecast is not None:
        spent = forecast.seconds
        row |= {
            "tokens_plan": forecast.tokens,
            "seconds_plan": sum(spent.values()),
            "model_seconds_plan": spent["model"],
            "states_seconds_plan": spent["answers and states"],
            "analysis_seconds_plan": spent["analysis"],
            "disk_plan": forecast.disk,
        }
    return row


def _seconds(stages: dict[str, Any], names: Sequence[str]) -> float:
    spent = [stages[name]["seconds"] for name in names if name in stages]
    return sum(spent) if spent else math.nan


def _replace(file: Path, table: pd.DataFrame) -> None:
    """Writes the table whole or not at all."""
    put_whole(file, table.to_csv(index=False))
