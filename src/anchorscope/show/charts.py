"""Charts of a run as data, and their interactive form in the report as plain plotly data."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from anchorscope.records import MODES
from anchorscope.run_folder.view import RunView, where
from anchorscope.show.curves import (
    NULL_LABEL,
    Series,
    auroc_series,
    intervention_series,
    null_series,
    pathway_series,
)

Unit = Literal["points", "percent", "share"]
_HOVER: dict[Unit, str] = {  # interval and n come from customdata: n, low, high
    "points": "%{y:.1f} (%{customdata[1]:.1f} to %{customdata[2]:.1f}), n = %{customdata[0]}",
    "percent": "%{y:.1f} % (%{customdata[1]:.1f} to %{customdata[2]:.1f}), n = %{customdata[0]}",
    "share": "%{y:.3f} (%{customdata[1]:.3f} to %{customdata[2]:.3f}), n = %{customdata[0]}",
}


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

    @property
    def label(self) -> str:
        """On the switch of the report."""
        return ", ".join(part for part in (self.column, self.row) if part)


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
    hover: Literal["x unified", "closest"] = "x unified"


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


def delta_p_chart(run: RunView) -> Chart:
    """ΔP by layer, a view per mode; both views share one y range so that they compare."""
    y = "ΔP (percent of P)" if run.unit == "percent" else "ΔP (percentage points)"
    views = []
    for mode in MODES:
        neutral = where(run.control_layers, mode=mode)
        views.append(
            View(
                column=f"{mode.capitalize()} mode",
                y=y,
                series=pathway_series(where(run.layers, mode=mode), run.titles),
                nulls=null_series([run], run.titles, mode),
                controls=pathway_series(neutral, run.titles, control=True),
            )
        )
    # One box for all curves of a layer would hide the curves it names.
    return Chart(views=views, hover="closest" if len(run.titles) > 2 else "x unified")


def probes_chart(run: RunView) -> Chart:
    """AUROC by layer, a line per dataset (dashed: the question alone), chance dotted."""
    view = View(column="All", y="AUROC", series=auroc_series(run, run.titles))
    return Chart(views=[view], unit="share", zero=0.5)


def controls_chart(run: RunView) -> Chart:
    """Flip rate by layer and intervention, a view per dataset."""
    views = [
        View(column=title, y="Predictions that flip (%)", series=intervention_series(run, name))
        for name, title in run.titles.items()
    ]
    return Chart(views=views, unit="percent")


def plotly_chart(chart: Chart | HeadMaps) -> dict[str, Any]:
    """The views to switch between, each with its traces and layout."""
    if isinstance(chart, HeadMaps):
        return _plotly_maps(chart)
    every = [s for view in chart.views for s in (*view.series, *view.nulls, *view.controls)]
    views = []
    # Strict first: the page opens on the reading that can be trusted.
    for view in sorted(chart.views, key=lambda view: "paper mode" in view.label.lower()):
        traces = [_null_trace(series) for series in view.nulls]
        traces += [_control_trace(series) for series in view.controls]
        for series in view.series:
            traces += [_band(series, _plain(series.label)), _line(series, chart.unit)]
        layout = _layout(chart, view, every if chart.share_y else view.series)
        views.append({"label": view.label, "data": traces, "layout": layout})
    return {"views": views}


def _line(series: Series, unit: Unit) -> dict[str, Any]:
    """The line that hovering reads."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": _plain(series.label),
        "legendgroup": _plain(series.label),
        "x": series.layer.tolist(),
        "y": series.value.tolist(),
        "customdata": [
            [int(n), float(low), float(high)]
            for n, low, high in zip(series.n, series.low, series.high, strict=True)
        ],
        "line": {
            "color": series.color,
            "width": 2,
            "dash": "dash" if series.dashed else "solid",
        },
        "marker": {
            "size": [6 if dot else 0.1 for dot in (series.alone | series.few)],
            "symbol": "circle-open",
            "color": series.color,
        },
        "connectgaps": False,
        "hovertemplate": _HOVER[unit],
        "meta": {"label": series.label},  # as it is: the page writes it as text, not as tags
    }


def _control_trace(series: Series) -> dict[str, Any]:
    """A thin pale line without a band: a group of the control."""
    line = _line(series, "points")
    line["line"]["width"] = 1.2
    line["marker"] = {"size": 0.1, "color": series.color}
    line["meta"] = {"label": "Pale: the same under neutral tokens", "control": True}
    line["legendgroup"] = "control"
    return line


def _null_trace(series: Series) -> dict[str, Any]:
    """The band of one mechanism, hatched, under the name that the legend shows once."""
    band = _band(series, "one mechanism")
    band["fillpattern"] = {"shape": "/", "fgcolor": _faint(series.color, 0.45), "size": 6,
                           "bgcolor": "rgba(0,0,0,0)"}  # fmt: skip
    band["line"] = {"width": 0, "color": series.color, "dash": "solid"}
    band["meta"] = {"label": NULL_LABEL, "null": True}
    return band


def _band(series: Series, name: str) -> dict[str, Any]:
    """One closed shape per stretch of layers without a gap."""
    x: list[float | None] = []
    y: list[float | None] = []
    at = np.flatnonzero(np.isfinite(series.low) & np.isfinite(series.high))
    for stretch in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1):
        layer, low, high = (
            a[stretch].astype(float) for a in (series.layer, series.low, series.high)
        )
        if len(stretch) == 1:  # a lone layer gets a narrow column instead of nothing
            layer = np.array([layer[0] - 0.12, layer[0] + 0.12])
            low, high = low.repeat(2), high.repeat(2)
        if len(stretch):
            x += [*layer.tolist(), *layer[::-1].tolist(), None]
            y += [*low.tolist(), *high[::-1].tolist(), None]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "legendgroup": name,
        "hoverinfo": "skip",
        "x": x,
        "y": y,
        "fill": "toself",
        "fillcolor": _faint(series.color),
        "line": {"width": 0},
    }


def _faint(color: str, alpha: float = 0.15) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def _plain(label: str) -> str:
    """Plotly reads a few tags and entities in names; escaped, they stay the text they are."""
    return html.escape(label, quote=False)


def _layout(chart: Chart, view: View, shown: Sequence[Series]) -> dict[str, Any]:
    """Sizes and axes; the page's script adds the colours of its light or dark theme."""
    # A curve without a natural zero fills its panel.
    first = shown[0].value if shown else np.array([chart.zero])
    finite = first[np.isfinite(first)]
    include = chart.zero if chart.share_y else float(finite[0] if len(finite) else chart.zero)
    dash = "dot" if chart.unit == "share" else "solid"
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": chart.zero, "y1": chart.zero,
            "line": {"width": 1, "dash": dash}, "layer": "between"}  # fmt: skip
    hover_title = "Layer %{x}" if chart.x == "Layer" else "%{x:.2f}"
    return {
        "xaxis": {
            "title": {"text": chart.x},
            "unifiedhovertitle": {"text": hover_title},
            "zeroline": False,
            "showgrid": False,
        },
        "yaxis": {"title": {"text": view.y}, "range": _span(shown, include), "zeroline": False},
        "shapes": [line] if chart.zero_line else [],
        "hovermode": chart.hover,
        **_FRAME,
    }


# The page has its own legend, which wraps on a phone.
_FRAME = {"margin": {"l": 60, "r": 12, "t": 26, "b": 48}, "showlegend": False}


def _span(series: Sequence[Series], include: float) -> list[float]:
    """The y range that holds every curve and interval, with a little air."""
    arrays = [array for s in series for array in (s.value, s.low, s.high)]
    numbers = np.concatenate([*arrays, np.array([include])])
    numbers = numbers[np.isfinite(numbers)]
    low, high = float(numbers.min()), float(numbers.max())
    air = 0.06 * (high - low) or 0.05
    return [low - air, high + air]


def _plotly_maps(chart: HeadMaps) -> dict[str, Any]:
    """A heatmap of blocks and heads, a view per dataset."""
    blocks, heads = next(iter(chart.maps.values())).shape
    axis = {"zeroline": False, "showgrid": False}
    layout = {
        "xaxis": {"title": {"text": "Head"}, "dtick": max(1, heads // 8), **axis},
        "yaxis": {"title": {"text": "Block"}, "dtick": max(1, blocks // 8),
                  "range": [0.5, blocks + 0.5], "zeroline": False},
        "shapes": [],
        "hovermode": "closest",
        **_FRAME,
    }  # fmt: skip
    look = {
        "type": "heatmap",
        "x": list(range(heads)),
        "y": list(range(1, blocks + 1)),
        "zmin": -chart.reach,
        "zmax": chart.reach,
        "colorscale": [[0, "#b2182b"], [0.5, "#f7f7f7"], [1, "#2166ac"]],
        "colorbar": {"title": {"text": "ΔP"}, "thickness": 12},
        "hovertemplate": "block %{y}, head %{x}: ΔP %{z:.2f}<extra></extra>",
    }
    views = [
        {"label": title, "data": [look | {"z": effects.tolist()}], "layout": layout}
        for title, effects in chart.maps.items()
    ]
    return {"views": views}
