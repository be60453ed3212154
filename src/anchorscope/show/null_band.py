"""The band that one mechanism would give, and a warning where the classes collapse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from anchorscope.records import Mode
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.curves import Series, color_of

if TYPE_CHECKING:  # the report needs the bands, and should not wait for it
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

HATCH = "////"
NULL_LABEL = "Q under one mechanism"


def has_band(run: RunView) -> bool:
    """Whether the null's band belongs to the groups drawn: it is made for each layer's own."""
    return run.has_strict and run.config.get("grouping", "per-layer") == "per-layer"


def null_series(runs: Sequence[RunView], titles: Mapping[str, str], mode: Mode) -> list[Series]:
    """For each dataset the band of Q under one mechanism: A's curve plus the null's gap, by layer.

    A Q curve inside its band shows no second pathway. Runs without the evidence give none.
    """
    found = []
    for position, (name, title) in enumerate(titles.items()):
        for run in runs:
            if name in run.titles and has_band(run):
                found.append(_series(run, name, title, position, mode))
    return [series for series in found if np.isfinite(series.low).any()]


def _series(run: RunView, dataset: str, title: str, position: int, mode: Mode) -> Series:
    null = where(run.strict, dataset=dataset).sort_values("layer")
    a_rows = where(run.layers, dataset=dataset, mode=mode, pathway="A")
    a = dict(zip(values(a_rows, "layer"), values(a_rows, "delta_p"), strict=True))
    base = np.array([a.get(layer, np.nan) for layer in values(null, "layer")], dtype=float)
    low, high = (values(null, f"{mode}_null_{end}").to_numpy(float) for end in ("low", "high"))
    return Series(
        label=f"{NULL_LABEL} ({title})",
        color=color_of(position),
        dashed=False,
        layer=values(null, "layer").to_numpy(dtype=int),
        value=base + (low + high) / 2,
        low=base + low,
        high=base + high,
        n=values(null, "n").to_numpy(dtype=int),
    )


def draw_null(ax: Axes, series: Series) -> None:
    """A light hatched band behind everything else."""
    ax.fill_between(
        series.layer, series.low, series.high, facecolor="none", edgecolor=series.color,
        alpha=0.55, hatch=HATCH, linewidth=0.6, zorder=0.8, label="_null",
    )  # fmt: skip


def null_handle() -> Patch:
    from matplotlib.patches import Patch

    return Patch(facecolor="none", edgecolor="#888888", hatch=HATCH, linewidth=0, label=NULL_LABEL)


def collapse_notes(runs: Sequence[RunView], titles: Mapping[str, str]) -> list[str]:
    """A line for each dataset whose pathway is, at some layers, only the predicted class."""
    notes = []
    for run in runs:
        if not run.has_strict:
            continue
        for name in run.titles:
            layers = collapsed_layers(run.strict, name)
            if layers:
                title = titles.get(name, name)
                word = "layer" if len(layers) == 1 else "layers"
                notes.append(f"{title}: pathway = predicted class at {word} {spans(layers)}")
    return notes


def collapsed_layers(strict: pd.DataFrame, dataset: str) -> list[int]:
    """The layers at which ŷ explains nearly all of the grouping."""
    rows = records(where(strict, dataset=dataset))
    return sorted(int(row["layer"]) for row in rows if str(row["collapse"]) == "True")


def spans(layers: Sequence[int]) -> str:
    """'1, 4–6' for 1, 4, 5, 6."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and layer == parts[-1][-1] + 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ", ".join(f"{p[0]}–{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def make_room(ax: Axes, lines: int) -> None:
    """Moves the lower end of the y axis down, so that notes do not lie on curves."""
    low, high = ax.get_ylim()
    ax.set_ylim(low - 0.07 * lines * (high - low), high)


def draw_notes(ax: Axes, notes: Sequence[str]) -> None:
    """The warnings, in the lower left of the panel."""
    if notes:
        ax.text(
            0.02, 0.03, "\n".join(f"⚠ {note}" for note in notes), transform=ax.transAxes,
            fontsize=6, color="#9a3412", va="bottom", zorder=5, parse_math=False,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip
