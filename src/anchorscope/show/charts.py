"""Charts of a run as data: what the figures draw, and as JSON what the report's script draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from anchorscope.run_folder.view import RunView
from anchorscope.show.curves import (
    Series,
    auroc_series,
    dashed_note,
    intervention_series,
)

Unit = Literal["points", "percent", "share"]


@dataclass(frozen=True, kw_only=True)
class View:
    """The curves of one panel: a choice on the report's switch, a panel of the figure."""

    row: str = ""  # named beside the panel's row
    column: str  # named above the panel
    y: str
    series: Sequence[Series]
    nulls: Sequence[Series] = ()  # hatched bands
    controls: Sequence[Series] = ()  # thin pale lines
    note: str = ""  # written into the panel
    warnings: Sequence[str] = ()  # below the curves
    switch: str = ""  # on the switch of the report, in place of column and row

    @property
    def label(self) -> str:
        """On the switch of the report."""
        return self.switch or ", ".join(part for part in (self.column, self.row) if part)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves in one or several views of the same kind."""

    views: Sequence[View]
    caption: str = ""
    unit: Unit = "points"
    zero: float = 0.0  # what nothing would give
    x: str = "Layer"
    share_y: bool = True
    zero_line: bool = True  # drawn where `zero` is
    controls_bare: bool = False  # dashed curves without a band: many on one another hide the rest


@dataclass(frozen=True, kw_only=True)
class HeadMaps:
    """ΔP by block and head, a map [block, head] for each dataset's title, NaN: not tried."""

    maps: Mapping[str, np.ndarray]
    caption: str

    @property
    def reach(self) -> float:
        """The largest size of any effect: one scale of colours serves all maps."""
        effects = np.concatenate([m[np.isfinite(m)] for m in self.maps.values()])
        return (float(np.abs(effects).max()) if len(effects) else 1.0) or 1.0


def probes_chart(run: RunView) -> Chart:
    """AUROC by layer, a line per dataset (dashed: the question alone), chance dotted."""
    series = auroc_series(run, run.titles)
    view = View(column=run.model_name, y="AUROC (wrong against right)", series=series)
    caption = "Each question is read by a probe that never saw it. Dotted: chance."
    return Chart(views=[view], caption=caption + dashed_note([run]), unit="share", zero=0.5)


def controls_chart(run: RunView) -> Chart:
    """Flip rate by layer and intervention, a view per dataset."""
    views = [
        View(column=title, y="Predictions that flip (%)", series=intervention_series(run, name))
        for name, title in run.titles.items()
    ]
    return Chart(views=views, caption="What the answer is kept from seeing.", unit="percent")


def chart_data(chart: Chart | HeadMaps) -> dict[str, Any]:
    """The chart as page.js draws it: its views to switch between, strict mode first."""
    if isinstance(chart, HeadMaps):
        maps = [{"label": title, "cells": cells.tolist()} for title, cells in chart.maps.items()]
        return {"kind": "heads", "reach": chart.reach, "views": maps}
    every = [s for view in chart.views for s in (*view.series, *view.nulls, *view.controls)]
    # A curve without a natural zero fills its panel.
    include = chart.zero if chart.share_y and chart.zero_line else math.nan
    views = [
        {
            "label": view.label,
            "y": view.y,
            "range": _span(every if chart.share_y else view.series, include),
            "nulls": [_series(series) for series in view.nulls],
            "controls": [_series(series) for series in view.controls],
            "curves": [_series(series) for series in view.series],
        }
        for view in sorted(chart.views, key=lambda view: "paper mode" in view.label.lower())
    ]
    zero = chart.zero if chart.zero_line else None
    return {"kind": "curves", "unit": chart.unit, "x": chart.x, "zero": zero, "views": views}


def _series(series: Series) -> dict[str, Any]:
    """A curve with its interval, counts, and the points that get a dot of their own."""
    numbers = {name: getattr(series, name).tolist() for name in ("layer", "value", "low", "high")}
    dots = (series.alone | series.few).tolist()
    look = {"label": series.label, "color": series.color, "dashed": series.dashed}
    return {**look, **numbers, "n": series.n.tolist(), "dots": dots}


def _span(series: Sequence[Series], include: float) -> list[float]:
    """The y range that holds every curve and interval, with a little air."""
    arrays = [array for s in series for array in (s.value, s.low, s.high)]
    numbers = np.concatenate([*arrays, np.array([include])])
    numbers = numbers[np.isfinite(numbers)]
    low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
    air = 0.06 * (high - low) or 0.05
    return [low - air, high + air]
