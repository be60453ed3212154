"""How a piece of evidence is shown: its sentences, its table, its curves, its claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anchorscope.records import Estimate
from anchorscope.run_folder.view import RunView, records, where
from anchorscope.show.charts import Chart, HeadMaps
from anchorscope.show.html import Table
from anchorscope.show.report.words import interval, number

BEYOND = {
    "holds": "It holds within a predicted class, with groups from another probe",
    "fails": "Within a predicted class, with groups from another probe, it fails",
    "undecided": "Within a predicted class, with groups from another probe, it is not decided",
    "not shown": "Two pathways are not shown here, so nothing is said of Q and A",
    "not measured": "Within a predicted class it could not be measured",
}
SUBSETS = {"all": "all", "predicted-right": "predicted right", "predicted-wrong": "predicted wrong"}
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """How a piece of evidence is shown, in the report and in figures/."""

    name: str  # of its table and its figure
    title: str
    chart: Callable[[RunView], Chart | HeadMaps]
    words: Callable[[RunView, str], list[str]]  # sentences about one dataset
    numbers: Callable[[RunView], Table]  # its table at the chosen layer of each dataset
    claims: tuple[str, ...] = ()  # the published claims about it


def table_at_layer(
    name: str, head: Sequence[str], rows: Callable[[pd.DataFrame], list[list[object]]]
) -> Callable[[RunView], Table]:
    """The table of a piece: what `rows` makes of each dataset's rows at its chosen layer."""

    def numbers(run: RunView) -> Table:
        cells = []
        for dataset, title in run.titles.items():
            layer = chosen_layer(run, dataset)
            at = where(run.evidence[name], dataset=dataset, layer=layer)
            cells += [[title, *row] for row in rows(at)]
        return Table(["Dataset", *head], cells, text_columns=3)

    return numbers


def side_by_side(
    at: pd.DataFrame,
    columns: tuple[str, str],
    value: str,
    show: Callable[[float], str],
    names: Mapping[str, str] | None = None,
) -> list[list[object]]:
    """Q beside A for every pair of values in two columns, with their counts."""
    called = SUBSETS | dict(names or {})
    cells_by_row: list[list[object]] = []
    for keys in dict.fromkeys(zip(*(at[column] for column in columns), strict=True)):
        rows = where(at, **dict(zip(columns, keys, strict=True)))
        pair = {str(row["pathway"]): row for row in records(rows)}
        q, a = pair["Q"], pair["A"]
        cells = [show(float(q[value])), show(float(a[value])), int(q["n"]), int(a["n"])]
        cells_by_row.append([*(called.get(str(key), str(key)) for key in keys), *cells])
    return cells_by_row


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
