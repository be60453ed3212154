"""The other evidence as interactive charts, from the same curves as the figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorscope.show.charts import layout_of, span_of, traces_of
from anchorscope.show.density import head_map
from anchorscope.show.evidence_views import Piece, View
from anchorscope.show.load import RunView


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
    if piece.name in ("boundary", "saliency"):
        layout["shapes"] = []
    return layout


def heads_chart(run: RunView) -> dict[str, Any]:
    """A map of blocks and heads, a view per dataset, one scale of colours for all."""
    maps = {name: head_map(run, name) for name in run.titles}
    known = np.concatenate([m[np.isfinite(m)] for m in maps.values()])
    reach = float(np.abs(known).max()) if len(known) else 1.0
    views = [
        {"label": run.titles[name], "key": name, "data": [_map(values, reach or 1.0)]}
        for name, values in maps.items()
    ]
    layout = layout_of("Block", [0.5, max(len(m) for m in maps.values()) + 0.5], zero=0.0)
    layout |= {"shapes": [], "hovermode": "closest"}
    blocks, heads = next(iter(maps.values())).shape
    layout["yaxis"]["dtick"] = max(1, blocks // 8)
    layout["xaxis"] = {"title": {"text": "Head"}, "zeroline": False, "showgrid": False,
                       "dtick": max(1, heads // 8)}  # fmt: skip
    return {"views": views, "layout": layout}


def _map(values: np.ndarray, reach: float) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "x": list(range(values.shape[1])),
        "y": list(range(1, values.shape[0] + 1)),
        "z": values.tolist(),
        "zmin": -reach,
        "zmax": reach,
        "colorscale": [[0, "#b2182b"], [0.5, "#f7f7f7"], [1, "#2166ac"]],
        "colorbar": {"title": {"text": "ΔP"}, "thickness": 12},
        "hovertemplate": "block %{y}, head %{x}: ΔP %{z:.2f}<extra></extra>",
    }
