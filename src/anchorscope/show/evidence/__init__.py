"""The other evidence, shown: every piece by name, and the report's section on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anchorscope.records import MODES
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.view import RunView, records
from anchorscope.show.charts import chart_data
from anchorscope.show.evidence.effects import ANSWER_ONLY, PATCHING, WINDOWS
from anchorscope.show.evidence.knowledge import AWARENESS, BOUNDARY
from anchorscope.show.evidence.shapes import HEADS, SALIENCY
from anchorscope.show.evidence.shown import Shown, table_of
from anchorscope.show.report.claims import decided

_SHOWN = (PATCHING, ANSWER_ONLY, WINDOWS, AWARENESS, BOUNDARY, SALIENCY, HEADS)
_BY_NAME = {shown.name: shown for shown in _SHOWN}
PIECES: Mapping[str, Shown] = {  # in the order of `--evidence`
    (name := piece.replace("-", "_")): _BY_NAME[name]
    for piece, tables in table_columns.PIECES.items()
    if tables
}


def pieces_of(run: RunView) -> list[Shown]:
    """The pieces of evidence whose tables a run holds."""
    return [shown for name, shown in PIECES.items() if name in run.evidence]


def evidence_parts(run: RunView) -> dict[str, Any]:
    """What the report's section shows: a line per claim, then chart, sentences and table."""
    pieces = pieces_of(run)
    claims = {claim for shown in PIECES.values() for claim in shown.claims}
    rows = [row for row in records(run.claims) if str(row["claim"]) in claims]
    claimed = {str(row["claim"]) for row in rows}
    return {
        "evidence": [_part(run, shown) for shown in pieces],
        "evidence_claims": [
            {
                "title": run.titles.get(str(row["dataset"]), str(row["dataset"])),
                "statement": str(row["statement"]),
                "modes": [decided(row, mode) for mode in MODES],
            }
            for row in rows
        ],
        # A piece that no claim of the run is about has a line of its own.
        "evidence_lines": [
            (f"{shown.title}, {title}", " ".join(shown.words(run, dataset)[:1]))
            for shown in pieces
            if not claimed & set(shown.claims)
            for dataset, title in run.titles.items()
        ],
    }


def _part(run: RunView, shown: Shown) -> dict[str, Any]:
    chart = shown.chart(run)
    return {
        "id": f"evidence-{shown.name.replace('_', '-')}",
        "title": shown.title,
        "chart": chart_data(chart),
        "caption": chart.caption,
        "sentences": [
            (title, " ".join(filter(None, shown.words(run, dataset))))
            for dataset, title in run.titles.items()
        ],
        "table": table_of(run, shown.name),
    }
