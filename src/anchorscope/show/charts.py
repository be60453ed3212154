"""The report's interactive charts, as plain plotly data: views to switch between, a layout."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from anchorscope.records import MODES
from anchorscope.run_folder.view import RunView
from anchorscope.show.curves import (
    Series,
    auroc_series,
    intervention_series,
    pathway_series,
)
from anchorscope.show.null_band import NULL_LABEL, null_series

Unit = Literal["points", "percent", "share"]
_HOVER: dict[Unit, str] = {  # interval and n come from customdata: n, low, high
    "points": "%{y:.1f} (%{customdata[1]:.1f} to %{customdata[2]:.1f}), n = %{customdata[0]}",
    "percent": "%{y:.1f} % (%{customdata[1]:.1f} to %{customdata[2]:.1f}), n = %{customdata[0]}",
    "share": "%{y:.3f} (%{customdata[1]:.3f} to %{customdata[2]:.3f}), n = %{customdata[0]}",
}


def delta_p_chart(run: RunView) -> dict[str, Any]:
    """ΔP by layer, a view per mode; both views share one y range so that they compare."""
    views, shown = [], []
    for mode in reversed(MODES):  # strict first: the page opens on the reading that can be trusted
        series = [s for s in pathway_series(run.layers, run.titles, mode) if len(s.layer)]
        shown += series
        nulls = null_series([run], run.titles, mode)
        controls = pathway_series(run.control_layers, run.titles, mode, control=True)
        controls = [s for s in controls if len(s.layer)]
        shown += [*nulls, *controls]
        traces = [_null(s) for s in nulls]
        traces += [trace for s in controls for trace in _thin(s)]
        traces += [trace for s in series for trace in traces_of(s, unit="points")]
        views.append({"label": f"{mode.capitalize()} mode", "key": mode, "data": traces})
    name = "ΔP (percent of P)" if run.unit == "percent" else "ΔP (percentage points)"
    layout = layout_of(name, span_of(shown, include=0.0), zero=0.0)
    if len(run.titles) > 2:  # one box for all curves of a layer would hide the curves it names
        layout["hovermode"] = "closest"
    return {"views": views, "layout": layout}


def probes_chart(run: RunView) -> dict[str, Any]:
    """AUROC by layer, a line per dataset (dashed: the question alone), chance dotted."""
    series = auroc_series(run, run.titles)
    traces = [trace for s in series for trace in traces_of(s, unit="share")]
    layout = layout_of("AUROC", span_of(series, include=0.5), zero=0.5, dotted=True)
    return {"views": [{"label": "All", "key": "all", "data": traces}], "layout": layout}


def controls_chart(run: RunView) -> dict[str, Any]:
    """Flip rate by layer and intervention, a view per dataset."""
    views, shown = [], []
    for name, title in run.titles.items():
        series = intervention_series(run, name)
        shown += series
        traces = [trace for s in series for trace in traces_of(s, unit="percent")]
        views.append({"label": title, "key": name, "data": traces})
    layout = layout_of("Predictions that flip (%)", span_of(shown, include=0.0), zero=0.0)
    return {"views": views, "layout": layout}


def traces_of(series: Series, *, unit: Unit) -> list[dict[str, Any]]:
    """The band, then the line that hovering reads."""
    name = plain(series.label)
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "legendgroup": name,
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
    return [_band(series, name), line]


def _thin(series: Series) -> list[dict[str, Any]]:
    """A thin pale line without a band: a group of the control."""
    (_, line) = traces_of(series, unit="points")
    line["line"]["width"] = 1.2
    line["marker"] = {"size": 0.1, "color": series.color}
    line["meta"] = {"label": "Pale: the same under neutral tokens", "control": True}
    line["legendgroup"] = "control"
    return [line]


def _null(series: Series) -> dict[str, Any]:
    """The band of one mechanism, hatched, under the name that the legend shows once."""
    band = _band(series, "one mechanism")
    band["fillpattern"] = {"shape": "/", "fgcolor": _faint(series.color, 0.45), "size": 6,
                           "bgcolor": "rgba(0,0,0,0)"}  # fmt: skip
    band["line"] = {"width": 0, "color": series.color, "dash": "solid"}
    band["legendgroup"] = "one mechanism"
    band["meta"] = {"label": NULL_LABEL, "null": True}
    return band


def _band(series: Series, name: str) -> dict[str, Any]:
    """One closed shape per stretch of layers without a gap."""
    x: list[float | None] = []
    y: list[float | None] = []
    for stretch in _stretches(np.isfinite(series.low) & np.isfinite(series.high)):
        layer, low, high = (
            a[stretch].astype(float) for a in (series.layer, series.low, series.high)
        )
        if len(stretch) == 1:  # a lone layer gets a narrow column instead of nothing
            layer = np.array([layer[0] - 0.12, layer[0] + 0.12])
            low, high = low.repeat(2), high.repeat(2)
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


def _stretches(known: np.ndarray) -> list[np.ndarray]:
    """Runs of neighbouring true positions."""
    at = np.flatnonzero(known)
    return [part for part in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1) if len(part)]


def _faint(color: str, alpha: float = 0.15) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def plain(label: str) -> str:
    """Plotly reads a few tags and entities in names; escaped, they stay the text they are."""
    return html.escape(label, quote=False)


def span_of(series: Sequence[Series], *, include: float) -> list[float]:
    """The y range that holds every curve and interval, with a little air."""
    arrays = [array for s in series for array in (s.value, s.low, s.high)]
    values = np.concatenate([*arrays, np.array([include])])
    values = values[np.isfinite(values)]
    low, high = float(values.min()), float(values.max())
    air = 0.06 * (high - low) or 0.05
    return [low - air, high + air]


def layout_of(y: str, span: list[float], *, zero: float, dotted: bool = False) -> dict[str, Any]:
    """Sizes and axes; the page's script adds the colours of its light or dark dress."""
    line = {"width": 1, "dash": "dot" if dotted else "solid"}
    shape = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": zero,
        "y1": zero,
        "line": line,
    }
    return {
        "xaxis": {
            "title": {"text": "Layer"},
            "unifiedhovertitle": {"text": "Layer %{x}"},
            "zeroline": False,
            "showgrid": False,
        },
        "yaxis": {"title": {"text": y}, "range": span, "zeroline": False},
        "shapes": [shape | {"layer": "between"}],
        "hovermode": "x unified",
        "margin": {"l": 60, "r": 12, "t": 26, "b": 48},
        "showlegend": False,  # the page has its own, which wraps on a phone
    }
