"""The report's section on the other evidence: a line each, then figure, table and paragraph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from anchorscope.run_folder.view import RunView, records
from anchorscope.show.evidence import PIECES, pieces_of
from anchorscope.show.evidence.shown import Shown
from anchorscope.show.report.markup import Safe, join, table, tag
from anchorscope.show.report.words import number

Chart = Callable[[str, dict, str], Safe]


def evidence_shown(run: RunView) -> list[Shown]:
    """The pieces of evidence that a report can show."""
    return pieces_of(run) if run.has_strict else []


def evidence_section(run: RunView, chart: Chart) -> Safe:
    """The whole section; `chart` makes a figure of (id, chart, caption)."""
    note = (
        "Read at the layer whose clean probe is best. Strict mode takes its groups from another "
        "probe and compares within each predicted class, so that a number there is not the "
        "predicted class under another name."
    )
    parts = [summary(run), tag("p", note, class_="quiet")]
    for shown in evidence_shown(run):
        figure = chart(f"evidence-{shown.name.replace('_', '-')}", *shown.chart(run))
        inside = [figure, *_said(run, shown), shown.numbers(run)]
        parts.append(tag("details", tag("summary", shown.title), *inside))
    return join(parts)


def summary(run: RunView) -> Safe:
    """One line per claim of the evidence and dataset: number, interval, verdict."""
    claims = {claim for shown in PIECES.values() for claim in shown.claims}
    rows = [
        [
            run.titles.get(str(row["dataset"]), str(row["dataset"])),
            str(row["statement"]),
            *(_reading(row, mode) for mode in ("paper", "strict")),
        ]
        for row in records(run.claims)
        if str(row["claim"]) in claims
    ]
    head = ["Dataset", "Claim", "Paper mode", "Strict mode, within predicted classes"]
    return join([table(head, rows, text_columns=2), *_unclaimed(run)])


def _unclaimed(run: RunView) -> list[Safe]:
    """One line for each piece that no claim of the run speaks of."""
    spoken = {str(row["claim"]) for row in records(run.claims)}
    lines = [
        tag("li", tag("b", f"{shown.title}, {title}: "), " ".join(shown.words(run, dataset)[:1]))
        for shown in pieces_of(run)
        if not spoken & set(shown.claims)
        for dataset, title in run.titles.items()
    ]
    return [tag("ul", *lines)] if lines else []


def _reading(row: dict[str, Any], mode: str) -> Safe:
    value, low, high = (float(row.get(f"{mode}_{n}", math.nan)) for n in ("value", "low", "high"))
    parts: list[object] = [tag("b", str(row[f"{mode}_decision"]))]
    if math.isfinite(value):
        parts.append(f" {number(value, 2)}")
    if math.isfinite(low) and math.isfinite(high):
        parts.append(tag("span", f"{number(low, 2)} to {number(high, 2)}", class_="under quiet"))
    return join(parts)


def _said(run: RunView, shown: Shown) -> list[Safe]:
    return [
        tag("p", tag("b", f"{title}. "), " ".join(filter(None, shown.words(run, dataset))))
        for dataset, title in run.titles.items()
    ]
