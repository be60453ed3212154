"""How a piece of evidence is shown: its sentences, its table, its curves, its claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anchorscope.records import Estimate
from anchorscope.run_folder.view import RunView, records, where
from anchorscope.show.charts import Chart, HeadMaps
from anchorscope.show.html import Table
from anchorscope.show.report.words import interval, number, short

BEYOND = {
    "holds": "It holds within a predicted class, with groups from another probe",
    "fails": "Within a predicted class, with groups from another probe, it fails",
    "undecided": "Within a predicted class, with groups from another probe, it is not decided",
    "not shown": "Two pathways are not shown here, so nothing is said of Q and A",
    "not measured": "Within a predicted class it could not be measured",
}
MOST_ROWS = 40
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """How a piece of evidence is shown, in the report and in figures/."""

    name: str  # of its table and its figure
    title: str
    chart: Callable[[RunView], Chart | HeadMaps]
    words: Callable[[RunView, str], list[str]]  # sentences about one dataset
    claims: tuple[str, ...] = ()  # the published claims about it


def table_of(run: RunView, piece: str) -> Table:
    """The rows of a piece's table at the layer where it is read, at most `MOST_ROWS` a dataset."""
    table = run.evidence[piece]
    columns = [name for name in table.columns if name not in ("model", "dataset", "layer")]
    words = [name for name in columns if table[name].dtype == object]
    numbers = [name for name in columns if name not in words]
    cells: list[list[object]] = []
    for dataset, title in run.titles.items():
        rows = records(where(table, dataset=dataset))
        at = [row for row in rows if row["layer"] == chosen_layer(run, dataset)]
        summed = [row for row in rows if math.isnan(row["layer"])]  # over all layers
        for row in (summed or at or rows)[:MOST_ROWS]:
            shown = [str(row[name]) for name in words]
            cells.append([title, *shown, *(_shown_number(row[name]) for name in numbers)])
    return Table(["Dataset", *words, *numbers], cells, text_columns=1 + len(words))


def _shown_number(value: Any) -> str:
    if isinstance(value, int) or not math.isfinite(value):
        return str(value) if isinstance(value, int) else ""
    return f"{value:.1e}" if 0 < abs(value) < 0.001 else short(value)


def chosen_layer(run: RunView, dataset: str) -> int:
    """The layer whose clean probe is best, where all evidence is read."""
    return int(records(where(run.findings, dataset=dataset))[0]["layer"])


def claim_of(run: RunView, claim: str, dataset: str) -> Row | None:
    """The row of claims.csv; None where the run has no such claim."""
    claims = records(where(run.claims, claim=claim, dataset=dataset))
    return claims[0] if claims else None


def verdict(row: Row | None, what: str = "Q less A") -> str:
    """What strict mode makes of a claim, its number named; nothing for a run without it."""
    if row is None:
        return ""
    numbers = (float(row.get(f"strict_{name}", math.nan)) for name in ("value", "low", "high"))
    estimate = Estimate(*numbers, n=0)
    words = BEYOND[str(row["strict_decision"])]
    if not math.isfinite(estimate.value):
        return f"{words}."
    ends = interval(estimate, 2)
    return f"{words}: {what} {number(estimate.value, 2)}{f' ({ends})' if ends else ''}."


def first_value(rows: pd.DataFrame, column: str) -> float:
    """The first row's number; NaN where there is no row."""
    first = records(rows.head(1))
    return float(first[0][column]) if first else math.nan
