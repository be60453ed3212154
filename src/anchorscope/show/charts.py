"""Charts as data: curves by layer with their colours and names, for figures and for pages.

`canvas.py` draws them with matplotlib, `web/chart.js` in a page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
from scipy.special import expit

from anchorscope.records import Mode
from anchorscope.run_folder.view import RunView, values, where

# One colour a dataset, distinguishable for readers who see no red or green (Okabe and Ito's, the
# darkest first), then darker tones of them for a seventh to a twelfth dataset.
PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#00446b", "#803800", "#005f45", "#7a4964", "#8a5f00", "#336c8c"),
)
CONTROL = "#b8b8b8"
INTERVENTIONS: Mapping[str, tuple[str, str]] = {  # name -> (what a reader calls it, colour)
    "knockout": ("exact question tokens", "#1f77b4"),
    "question": ("all question tokens", "#9467bd"),
    "answer-only": ("answer without question", "#2ca02c"),
    "content": ("other content words", "#bcbd22"),
    "neutral": ("neutral tokens", "#8f8f8f"),
    "retest": ("another prompt", "#17becf"),
    "retest-knockout": ("exact question tokens, another prompt", "#8c564b"),
}
_OTHER = ("#bcbd22", "#17becf", "#8c564b")  # for an intervention without a name of its own
# Below this many samples a bootstrap interval is too narrow to be believed; such points
# are drawn hollow and such numbers are labelled as few.
FEW = 10
NULL_LABEL = "Q under one mechanism"
CONTROL_LABEL = "Pale: the same under neutral tokens"
Columns = tuple[str, str, str]  # of a value and the ends of its interval
DELTA_P: Columns = ("delta_p", "delta_p_low", "delta_p_high")
AUROC: Columns = ("auroc", "auroc_low", "auroc_high")
FLIPS: Columns = ("flip_rate", "flip_rate_low", "flip_rate_high")
Halves = dict[tuple[str, int, int, str], tuple[float, float]]  # of a mode, layer, class, pathway
Unit = Literal["points", "percent", "share"]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve: a group of one dataset, with its interval and counts, by layer."""

    label: str
    color: str
    dashed: bool = False
    dataset: str = ""
    layer: np.ndarray  # [layer]
    value: np.ndarray  # [layer], NaN where the group is empty
    low: np.ndarray
    high: np.ndarray
    n: np.ndarray

    @property
    def alone(self) -> np.ndarray:
        """Whether each point has no neighbour to draw a line to, bool [layer]."""
        finite = np.isfinite(self.value)
        padded = np.concatenate([[False], finite, [False]])
        return finite & ~padded[:-2] & ~padded[2:]

    @property
    def few(self) -> np.ndarray:
        """Whether each point has fewer samples than an interval needs, bool [layer]."""
        return np.isfinite(self.value) & (self.n < FEW)


@dataclass(frozen=True, kw_only=True)
class View:
    """The curves of one panel of a figure, or of one choice on a page's switch."""

    row: str = ""  # named beside the panel's row
    column: str  # named above the panel
    y: str
    series: Sequence[Series]
    nulls: Sequence[Series] = ()  # hatched bands
    controls: Sequence[Series] = ()  # thin pale lines
    note: str = ""  # written into the panel
    warnings: Sequence[str] = ()  # below the curves
    switch: str = ""  # on a page's switch, in place of column and row


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves in one or several views of the same kind."""

    views: Sequence[View]
    caption: str = ""
    unit: Unit = "points"
    zero: float | None = 0.0  # the line of no effect; None: no line
    x: str = "Layer"
    share_y: bool = True
    diagonal: bool = False  # a dotted line from 0, 0 to 1, 1


@dataclass(frozen=True, kw_only=True)
class Maps:
    """Heat maps [row, column] by title, on one colour scale; NaN is an empty cell."""

    maps: Mapping[str, np.ndarray]
    caption: str
    ends: tuple[float, float]  # of the scale
    x: str = "Head"
    y: str = "Block"
    names: tuple[Sequence[str], Sequence[str]] | None = None  # of rows and columns; None: numbers


def color_of(position: int) -> str:
    """The colour of the dataset at `position` (from 0)."""
    return PALETTE[position % len(PALETTE)]


def pale(color: str) -> str:
    """The tone of a dataset's control: the colour, two thirds of the way to white."""
    return "#" + "".join(f"{(int(color[i : i + 2], 16) + 2 * 255) // 3:02x}" for i in (1, 3, 5))


def all_titles(runs: Sequence[RunView]) -> dict[str, str]:
    """Dataset short name -> title over several runs, in order of first appearance."""
    titles: dict[str, str] = {}
    for run in runs:
        titles |= {name: title for name, title in run.titles.items() if name not in titles}
    return titles


def curve(
    rows: pd.DataFrame,
    columns: Columns,
    *,
    label: str,
    color: str,
    dashed: bool = False,
    dataset: str = "",
    factor: float = 1,
) -> Series:
    """A curve of table columns by layer, times `factor`; without interval columns NaN."""
    rows = rows.sort_values("layer")
    nothing = np.full(len(rows), math.nan)
    value, low, high = (
        factor * rows[name].to_numpy(float) if name in rows else nothing for name in columns
    )
    count = rows["n" if "n" in rows else "n_test"].to_numpy(float)
    return Series(
        label=label, color=color, dashed=dashed, dataset=dataset, value=value, low=low, high=high,
        layer=rows["layer"].to_numpy(int), n=np.nan_to_num(count).astype(int),
    )  # fmt: skip


def pathway_series(
    table: pd.DataFrame,
    titles: Mapping[str, str],
    columns: Columns = DELTA_P,
    *,
    factor: float = 1,
    control: bool = False,
) -> list[Series]:
    """Curves of Q and A for each dataset in the table, in legend order; pale for a control."""
    series: list[Series] = []
    for position, (name, title) in enumerate(titles.items()):
        for pathway in ("Q", "A"):
            rows = where(table, dataset=name, pathway=pathway)
            label, color = f"{pathway}-Anchored ({title})", color_of(position)
            if control:
                label, color = f"{pathway}, neutral tokens ({title})", pale(color)
            if len(rows):
                drawn = curve(
                    rows, columns, label=label, color=color, dashed=pathway == "A", dataset=name,
                    factor=factor,
                )  # fmt: skip
                series.append(drawn)
    return series


def null_series(runs: Sequence[RunView], titles: Mapping[str, str], mode: Mode) -> list[Series]:
    """Bands of Q under one mechanism, by dataset: A's curve plus the null's gap, by layer.

    A Q curve inside its band shows no second pathway. The null is made for each layer's own
    groups: a run that groups at one layer has no band.
    """
    found = []
    for position, (name, title) in enumerate(titles.items()):
        for run in runs:
            if name not in run.titles or run.config.get("grouping", "per-layer") != "per-layer":
                continue
            null = where(run.strict, dataset=name).sort_values("layer")
            a = where(run.layers, dataset=name, mode=mode, pathway="A").set_index("layer")
            base = a["delta_p"].reindex(null["layer"]).to_numpy(float)
            low, high = (null[f"{mode}_null_{end}"].to_numpy(float) for end in ("low", "high"))
            band = Series(
                label=f"{NULL_LABEL} ({title})", color=color_of(position), dataset=name,
                layer=null["layer"].to_numpy(int), value=base + (low + high) / 2, low=base + low,
                high=base + high, n=null["n"].to_numpy(int),
            )  # fmt: skip
            if np.isfinite(band.low).any():
                found.append(band)
    return found


def probes_chart(run: RunView) -> Chart:
    """AUROC by layer, a line per dataset (dashed: the question alone), chance dotted."""
    series, before = [], run.evidence.get("question_probe")
    for position, (name, title) in enumerate(run.titles.items()):
        color, label = color_of(position), f"{title}, question only"
        series.append(curve(where(run.probes, dataset=name), AUROC, label=title, color=color))
        if before is not None:
            rows = where(before, dataset=name)
            series.append(curve(rows, AUROC, label=label, color=color, dashed=True))
    view = View(column=run.model_name, y="AUROC (wrong against right)", series=series)
    caption = "Each question is read by a probe that never saw it. Dotted: chance."
    if before is not None:
        caption += " Dashed: a probe at the last question token, before any answer."
    return Chart(views=[view], caption=caption, unit="share", zero=0.5)


def intervention_names(table: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Intervention -> (name, colour) of those in controls.csv, the known ones first."""
    interventions = list(dict.fromkeys(values(table, "intervention")))
    named = {name: style for name, style in INTERVENTIONS.items() if name in interventions}
    others = [name for name in interventions if name not in INTERVENTIONS]
    return named | {name: (name, _OTHER[i % len(_OTHER)]) for i, name in enumerate(others)}


def controls_chart(run: RunView) -> Chart:
    """Flip rate by layer and intervention, a view per dataset."""
    views = []
    for dataset, title in run.titles.items():
        rows = where(run.controls, dataset=dataset)
        series = [
            curve(part, FLIPS, label=label, color=color, factor=100)
            for name, (label, color) in intervention_names(run.controls).items()
            if len(part := where(rows, intervention=name))
        ]
        views.append(View(column=title, y="Predictions that flip (%)", series=series))
    return Chart(views=views, caption="What the answer is kept from seeing.", unit="percent")


def middle_halves(pathways: pd.DataFrame) -> Halves:
    """The quartiles of P(wrong) under the knockout, by mode, layer, predicted class and pathway.

    Groups of fewer than `FEW` samples have none.
    """
    halves: Halves = {}
    key = ["mode", "layer", "prediction", "pathway"]
    for names, group in pathways.groupby(key, observed=True):
        logits = group["logit_knockout"].dropna().to_numpy(float)
        if len(logits) >= FEW:
            low, high = np.quantile(expit(logits), (0.25, 0.75)).tolist()
            halves[cast(tuple, names)] = low, high
    return halves


def collapse_notes(runs: Sequence[RunView], titles: Mapping[str, str]) -> list[str]:
    """A note on each dataset whose pathway equals the predicted class at some layers."""
    notes = []
    for run in runs:
        for name in run.titles:
            rows = where(run.strict, dataset=name)
            layers = sorted(rows.loc[rows["collapse"].astype(str) == "True", "layer"].astype(int))
            if layers:
                title = titles.get(name, name)
                notes.append(f"{title}: pathway = predicted class at {layer_spans(layers)}")
    return notes


def layer_spans(layers: Sequence[int]) -> str:
    """Format layer numbers as spans: 'layers 1, 4–6' for 1, 4, 5, 6."""
    runs = groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0])
    parts = [[layer for _, layer in run] for _, run in runs]
    spans = ", ".join(f"{p[0]}–{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
    return f"layer{'s' if len(layers) > 1 else ''} {spans}"


def chart_data(chart: Chart | Maps) -> dict[str, Any]:
    """The chart as data for chart.js: its views, strict mode first."""
    if isinstance(chart, Maps):
        maps = [{"label": title, "cells": cells.tolist()} for title, cells in chart.maps.items()]
        return {"kind": "heads", "reach": chart.ends[1], "views": maps}
    every = [s for view in chart.views for s in (*view.series, *view.nulls, *view.controls)]
    # A curve without a natural zero fills its panel.
    include = chart.zero if chart.share_y and chart.zero is not None else math.nan
    views = [
        {
            "label": view.switch or ", ".join(part for part in (view.column, view.row) if part),
            "y": view.y,
            "range": _span(every if chart.share_y else view.series, include),
            "nulls": [_series(series) for series in view.nulls],
            "controls": [_series(series) for series in view.controls],
            "curves": [_series(series) for series in view.series],
        }
        for view in chart.views
    ]
    views.sort(key=lambda view: "paper mode" in view["label"].lower())
    return {"kind": "curves", "unit": chart.unit, "x": chart.x, "zero": chart.zero, "views": views}


def _series(series: Series) -> dict[str, Any]:
    """A curve with its interval, counts, and the points that get a dot of their own."""
    look = {name: getattr(series, name) for name in ("label", "color", "dashed", "dataset")}
    numbers = {name: getattr(series, name) for name in ("layer", "value", "low", "high", "n")}
    numbers["dots"] = series.alone | series.few
    return look | {name: array.tolist() for name, array in numbers.items()}


def _span(series: Sequence[Series], include: float) -> list[float]:
    """The y range that holds every curve and interval, with a small margin."""
    arrays = [array for s in series for array in (s.value, s.low, s.high)]
    numbers = np.concatenate([*arrays, np.array([include])])
    numbers = numbers[np.isfinite(numbers)]
    low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
    air = 0.06 * (high - low) or 0.05
    return [low - air, high + air]
