"""One piece of evidence as curves, and their interactive chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from anchorscope.run_folder.view import RunView, values, where
from anchorscope.show.charts import layout_of, span_of, traces_of
from anchorscope.show.curves import Series, color_of, curve

Unit = Literal["points", "percent", "share"]


@dataclass(frozen=True, kw_only=True)
class View:
    """The curves of one panel."""

    row: str  # named beside the panel's row
    column: str  # named above the panel
    y: str
    series: Sequence[Series]
    note: str = ""  # written into the panel

    @property
    def label(self) -> str:
        """On the switch of the report."""
        return ", ".join(part for part in (self.column, self.row) if part)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One piece of evidence."""

    name: str  # of its figure
    views: Sequence[View]
    caption: str
    unit: Unit = "points"
    zero: float = 0.0  # what nothing would give
    x: str = "Layer"
    share_y: bool = True
    zero_line: bool = True  # drawn where `zero` is
    controls_bare: bool = False  # dashed curves without a band: many on one another hide the rest


def pathway_curves(
    run: RunView, table: pd.DataFrame, columns: tuple[str, str, str], *, factor: float = 1
) -> list[Series]:
    """Q and A of each dataset, in the colours of every other figure."""
    curves = []
    for position, (name, title) in enumerate(run.titles.items()):
        for pathway in ("Q", "A"):
            rows = where(table, dataset=name, pathway=pathway)
            label, color = f"{pathway}-Anchored ({title})", color_of(position)
            dashed = pathway == "A"
            if len(rows):
                curves.append(interval_curve(rows, columns, label=label, color=color, dashed=dashed,
                                    factor=factor))  # fmt: skip
    return curves


def interval_curve(
    rows: pd.DataFrame,
    columns: tuple[str, str, str],
    *,
    label: str,
    color: str,
    dashed: bool = False,
    factor: float = 1,
) -> Series:
    """The columns (value, low, high) by layer."""
    named = dict(zip(("v", "v_low", "v_high"), columns, strict=True))
    rows = rows.assign(**{new: factor * values(rows, old) for new, old in named.items()})
    return curve(rows, "v", label=label, color=color, dashed=dashed)


def piece_chart(piece: Piece) -> dict[str, Any]:
    """A view per panel of the figure; views of one scale share their y range."""
    shown = [series for view in piece.views for series in view.series]
    views = []
    # Strict first: the page opens on the reading that can be trusted.
    for view in sorted(piece.views, key=lambda view: "paper" in view.label.lower()):
        traces = [trace for s in view.series for trace in traces_of(s, unit=piece.unit)]
        mine = _layout(piece, view, shown if piece.share_y else list(view.series))
        views.append({"label": view.label, "key": view.label, "data": traces, "layout": mine})
    return {"views": views, "layout": _layout(piece, piece.views[0], shown)}


def _layout(piece: Piece, view: View, shown: list) -> dict[str, Any]:
    # A curve without a natural zero fills its panel.
    first = shown[0].value if shown else np.array([piece.zero])
    known = first[np.isfinite(first)]
    include = piece.zero if piece.share_y else float(known[0] if len(known) else piece.zero)
    span = span_of(shown, include=include)
    layout = layout_of(view.y, span, zero=piece.zero, dotted=piece.unit == "share")
    layout["xaxis"]["title"]["text"] = piece.x
    if piece.x != "Layer":
        layout["xaxis"]["unifiedhovertitle"]["text"] = "%{x:.2f}"
    if not piece.zero_line:
        layout["shapes"] = []
    return layout
