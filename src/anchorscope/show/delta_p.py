"""The ΔP figure in the manner of the published picture, with its controls in grey."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from anchorscope.errors import UserError, unknown
from anchorscope.records import MODES, Mode
from anchorscope.run_folder.view import RunView, records, where
from anchorscope.show import canvas
from anchorscope.show.curves import (
    NULL_LABEL,
    Series,
    all_titles,
    collapse_notes,
    color_of,
    has_band,
    null_series,
    pathway_series,
)

HATCH = "////"

MODE_TITLES: Mapping[Mode, str] = {
    "paper": "Paper mode: groups and effects from the same probe, so some of the gap is built in",
    "strict": "Strict mode: groups from one probe, effects from another, on unseen questions",
}


@dataclass(frozen=True, kw_only=True)
class Style:
    """Size of a figure for a paper or slides, whose caption is in the text around it."""

    width: float  # inches
    height: float | None = None  # inches; None: as much as the panels and the legend need
    dpi: float = 300


# Text is 8 points high. A slide shows these 6 inches on 13.3, and the text as if it had 18.
STYLES: Mapping[str, Style] = {
    "paper": Style(width=7.0),
    "slides": Style(width=6.0, height=3.375, dpi=320),
}


@dataclass
class Panel:
    """The runs of one model, drawn together."""

    title: str
    runs: list[RunView] = field(default_factory=list)

    def takes(self, run: RunView) -> bool:
        """Whether the run adds datasets to this model rather than a second reading of one."""
        drawn = {name for other in self.runs for name in other.titles}
        return self.title == run.model_name and not drawn & run.titles.keys()

    def layers(self) -> pd.DataFrame:
        return pd.concat([run.layers for run in self.runs], ignore_index=True)

    def control_layers(self) -> pd.DataFrame:
        return pd.concat([run.control_layers for run in self.runs], ignore_index=True)


def plot_delta_p(
    runs: Sequence[RunView] | RunView,
    *,
    mode: Literal["paper", "strict", "both"] = "strict",
    style: Style | None = None,
) -> Figure:
    """Draw ΔP by layer: a column of panels per model, a row per mode, one legend below.

    Args:
        runs: One finished run or several.
        mode: strict, paper, or both.
        style: Size and fonts of a paper; the caption is then left to the text around the figure
            (`caption_of` gives it).

    Returns:
        A figure of matplotlib.

    Examples:
        >>> import anchorscope as anc
        >>> figure = anc.plot_delta_p(anc.RunView.open("runs/atlas"), mode="both")
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['ΔP (paper mode)', 'ΔP (strict mode)']
        >>> figure.savefig("delta_p.png")

    """
    views = [runs] if isinstance(runs, RunView) else list(runs)
    if not views:
        raise UserError("There is no run to draw. Give at least one finished run folder.")
    if mode not in (*MODES, "both"):
        raise unknown("mode", mode, (*MODES, "both"))
    modes: tuple[Mode, ...] = MODES if mode == "both" else (mode,)
    titles, columns = all_titles(views), group_by_model(views)
    width, height = (style.width, style.height) if style else (None, None)
    figure, axes = canvas.panels(len(modes), len(columns), share_y=True, width=width)
    few = False
    for row, each in enumerate(modes):
        for column, panel in enumerate(columns):
            few |= _draw_panel(axes[row, column], panel, titles, each)
    _make_room(axes[0, 0], max(len(collapse_notes(p.runs, titles)) for p in columns))
    _name_axes(axes, columns, modes)
    notes: list[Artist] = [canvas.control_handle(), *([canvas.few_handle()] if few else [])]
    notes += [_null_handle()] if any(map(has_band, views)) else []
    canvas.footer(
        figure,
        _legend_handles(titles),
        columns=_legend_columns(titles, len(columns), style),
        notes=notes,
        caption="" if style else caption(columns, titles, modes),
        height=height,
    )
    return figure


def caption_of(runs: Sequence[RunView], mode: Literal["paper", "strict", "both"]) -> str:
    """The caption of the figure of these runs, for the text around it."""
    modes: tuple[Mode, ...] = MODES if mode == "both" else (mode,)
    start = "Solid: question-anchored (Q). Dashed: answer-anchored (A). "
    return start + caption(group_by_model(runs), all_titles(runs), modes).replace("\u00a0", " ")


def group_by_model(runs: Sequence[RunView]) -> list[Panel]:
    """One panel per model; a second run of the same model and dataset gets its own."""
    panels: list[Panel] = []
    for run in runs:
        panel = next((panel for panel in panels if panel.takes(run)), None)
        if panel is None:
            panel = Panel(run.model_name)
            panels.append(panel)
        panel.runs.append(run)
    names = [panel.title for panel in panels]
    for panel in panels:
        if names.count(panel.title) > 1:
            panel.title = f"{panel.title} ({panel.runs[0].path.name})"
    return panels


def _draw_panel(ax: Axes, panel: Panel, titles: Mapping[str, str], mode: Mode) -> bool:
    """Draw one model's curves in one mode; whether a point has few samples."""
    ax.axhline(0, color="#444444", linewidth=0.7, zorder=1)
    for series in null_series(panel.runs, titles, mode):
        _draw_null(ax, series)
    _draw_notes(ax, collapse_notes(panel.runs, titles))
    for series in pathway_series(where(panel.control_layers(), mode=mode), titles, control=True):
        _draw_control(ax, series)
    drawn = pathway_series(where(panel.layers(), mode=mode), titles)
    for series in drawn:
        canvas.draw(ax, series)
    if not any(np.isfinite(series.value).any() for series in drawn):
        ax.text(0.5, 0.5, "no group has a sample", ha="center", transform=ax.transAxes, fontsize=8)
    return any(series.few.any() for series in drawn)


def _draw_control(ax: Axes, series: Series) -> None:
    """Draw a control as a thin pale curve, without an interval."""
    ax.plot(
        series.layer, series.value, color=series.color, linewidth=1.0, zorder=1.5,
        linestyle="--" if series.dashed else "-", label="_control",
    )  # fmt: skip


def _draw_null(ax: Axes, series: Series) -> None:
    """Draw the band of one mechanism, hatched, behind everything else."""
    ax.fill_between(
        series.layer, series.low, series.high, facecolor="none", edgecolor=series.color,
        alpha=0.55, hatch=HATCH, linewidth=0.6, zorder=0.8, label="_null",
    )  # fmt: skip


def _null_handle() -> Patch:
    return Patch(facecolor="none", edgecolor="#888888", hatch=HATCH, linewidth=0, label=NULL_LABEL)


def _make_room(ax: Axes, lines: int) -> None:
    """Move the lower end of the y axis down, so that notes do not cover curves."""
    low, high = ax.get_ylim()
    ax.set_ylim(low - 0.07 * lines * (high - low), high)


def _draw_notes(ax: Axes, notes: Sequence[str]) -> None:
    """Write the warnings into the lower left of the panel."""
    if notes:
        ax.text(
            0.02, 0.03, "\n".join(f"⚠ {note}" for note in notes), transform=ax.transAxes,
            fontsize=6, color="#9a3412", va="bottom", zorder=5, parse_math=False,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip


def _name_axes(axes: np.ndarray, columns: Sequence[Panel], modes: Sequence[Mode]) -> None:
    for ax, panel in zip(axes[0], columns, strict=True):
        canvas.title(ax, panel.title)
    for ax in axes[:-1].flat:
        ax.set_xlabel("")
    for row, mode in zip(axes, modes, strict=True):
        label = "ΔP" if len(modes) == 1 else f"ΔP ({mode} mode)"
        row[0].set_ylabel(label, fontsize=canvas.TEXT, color=canvas.INK)


def _legend_handles(titles: Mapping[str, str]) -> list[Line2D]:
    """Handles in the published order, also of groups that have no sample."""
    return [
        Line2D(
            [],
            [],
            color=color_of(at),
            linestyle="--" if pathway == "A" else "-",
            lw=1.3,
            label=f"{pathway}-Anchored ({title})",
        )
        for at, title in enumerate(titles.values())
        for pathway in ("Q", "A")
    ]


def _legend_columns(titles: Mapping[str, str], panels: int, style: Style | None) -> int:
    """Columns of the legend that keep each dataset's Q above its A where they divide evenly."""
    most = min(2 * panels, 4)
    if style is not None:  # a slide is as wide as it is, however long the names
        inches = sorted(0.38 + 0.053 * len(f"Q-Anchored ({t})") for t in titles.values())[::-1]
        most = max([1, *(n for n in (2, 3, 4) if sum(inches[:n]) <= style.width)])
    rows = -(-len(titles) // most)
    return -(-len(titles) // rows)


def caption(columns: Sequence[Panel], titles: Mapping[str, str], modes: Sequence[Mode]) -> str:
    """One line: the mode, what was cut, the bands, and how many questions."""
    reading = MODE_TITLES[modes[0]] if len(modes) == 1 else "Rows: paper mode and strict mode"
    cut = "Knockout of " + _settings(columns)
    return f"{reading}. {cut}. Bands: 95 % bootstrap intervals. {_counts(columns, titles)}."


def _settings(columns: Sequence[Panel]) -> str:
    """What is cut and how: the knockout's switches, where the runs record and agree on them."""
    switches, words = [], {"pre": "before the softmax", "post": "after the softmax"}
    for key in ("layers", "where", "finder", "grouping"):
        value = _agreed(columns, key)
        if value not in (None, "auto", "per-layer"):
            prefix = f"{key} " if key in ("finder", "grouping") else ""
            switches.append(prefix + words.get(str(value), str(value)))
    keys = f"{_agreed(columns, 'keys') or 'exact'} tokens".replace("exact", "exact question")
    return keys + (f" ({', '.join(switches)})" if switches else "")


def _agreed(columns: Sequence[Panel], key: str) -> str | None:
    """The value of a setting that all runs record and agree on."""
    values = {str(run.config[key]) for p in columns for run in p.runs if key in run.config}
    return values.pop() if len(values) == 1 else None


def _counts(columns: Sequence[Panel], titles: Mapping[str, str]) -> str:
    """How many questions are behind the curves of each panel."""
    parts = []
    for panel in columns:
        table = panel.layers()
        sums = {name: _questions(where(table, dataset=name)) for name in titles}
        counts = [f"{sums[name]} {title}" for name, title in titles.items() if sums[name]]
        each = ", ".join(count.replace(" ", "\u00a0") for count in counts)  # kept on one line
        parts.append(each if len(columns) == 1 else f"{panel.title}: {each}")
    return "n\u00a0=\u00a0" + "; ".join(parts) if any(parts) else "n\u00a0=\u00a00"


def _questions(table: pd.DataFrame) -> int:
    """The most samples that Q and A have together at any layer, in any mode."""
    sums: dict[tuple[str, int], int] = {}
    for row in records(table):
        key = (row["mode"], row["layer"])
        sums[key] = sums.get(key, 0) + int(row["n"])
    return max(sums.values(), default=0)
