"""Every figure of a run by its name: probes, controls, and the other evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from anchorscope.run_folder.view import RunView
from anchorscope.show import canvas
from anchorscope.show.charts import Chart, HeadMaps, View, controls_chart, probes_chart
from anchorscope.show.curves import CONTROL, NULL_LABEL
from anchorscope.show.delta_p import plot_delta_p
from anchorscope.show.evidence import PIECES

HATCH = "////"
CONTROL_LABEL = "Pale: the same under neutral tokens"


def plot_probes(run: RunView) -> Figure:
    """AUROC of the clean probe by layer: a line per dataset."""
    return _captioned(run, probes_chart(run))


def plot_controls(run: RunView) -> Figure:
    """Share of probe predictions that flip, by layer and intervention: a panel per dataset."""
    return _captioned(run, controls_chart(run))


def figure_of(run: RunView, name: str) -> Figure:
    """A figure of a run by its name; of the other evidence only the piece of that name is read."""
    draw = {
        "delta_p": partial(plot_delta_p, mode="paper"),
        "delta_p_strict": partial(plot_delta_p, mode="strict"),
        "delta_p_both": partial(plot_delta_p, mode="both"),
        "probes": plot_probes,
        "controls": plot_controls,
    }
    if name in draw:
        return draw[name](run)
    chart = PIECES[name].chart(run)
    return _plot_heads(run, chart) if isinstance(chart, HeadMaps) else _captioned(run, chart)


def _captioned(run: RunView, chart: Chart) -> Figure:
    drawn = [series for view in chart.views for series in view.series]
    bands = " Bands: 95 % intervals." if any(np.isfinite(s.low).any() for s in drawn) else ""
    return plot_chart(chart, caption=f"{run.model_name}. {chart.caption}{bands}")


def plot_chart(
    chart: Chart, *, caption: str = "", width: float | None = None, height: float | None = None
) -> Figure:
    """A panel per view, in the rows and columns that the views name; one legend below."""
    rows = list(dict.fromkeys(view.row for view in chart.views))
    columns = list(dict.fromkeys(view.column for view in chart.views))
    figure, axes = canvas.panels(len(rows), len(columns), share_y=chart.share_y, width=width)
    for ax in axes.flat:
        ax.set_axis_off()
    for view in chart.views:
        ax = axes[rows.index(view.row), columns.index(view.column)]
        ax.set_axis_on()
        _draw_view(ax, view, chart)
        last, first = view.row == rows[-1], view.column == columns[0]
        ax.set_xlabel(chart.x if last else "", fontsize=canvas.TEXT, color=canvas.INK)
        if view.row == rows[0]:
            canvas.title(ax, view.column)
        if first or not chart.share_y:
            y = f"{view.y}\n{view.row}" if view.row and first else view.y
            ax.set_ylabel(y, fontsize=canvas.TEXT, color=canvas.INK)
    if chart.share_y:
        _make_room(axes[0, 0], max(len(view.warnings) for view in chart.views))
    handles = _handles(chart)
    canvas.footer(
        figure,
        handles,
        columns=_legend_columns(handles, figure.get_figwidth()),
        notes=_notes(chart),
        caption=caption,
        height=height,
    )
    return figure


def _notes(chart: Chart) -> list[Artist]:
    """The legend's second part: what is pale, hatched or hollow."""
    notes: list[Artist] = [*_handles(chart, controls=True)]
    if any(view.controls for view in chart.views):
        notes.append(Line2D([], [], color=CONTROL, lw=1.0, label=CONTROL_LABEL))
    if any(view.nulls for view in chart.views):
        look = {"facecolor": "none", "edgecolor": "#888888", "hatch": HATCH, "linewidth": 0}
        notes.append(Patch(**look, label=NULL_LABEL))
    if any(series.few.any() for view in chart.views for series in view.series):
        notes.append(canvas.few_handle())
    return notes


def _draw_view(ax: Axes, view: View, chart: Chart) -> None:
    if chart.unit == "share" and chart.zero:
        ax.axhline(chart.zero, color="#888888", linewidth=0.7, linestyle=":")
    elif chart.zero_line:
        ax.axhline(chart.zero, color="#444444", linewidth=0.7, zorder=1)
    for series in view.nulls:
        ax.fill_between(
            series.layer, series.low, series.high, facecolor="none", edgecolor=series.color,
            alpha=0.55, hatch=HATCH, linewidth=0.6, zorder=0.8, label="_null",
        )  # fmt: skip
    for series in view.controls:
        ax.plot(
            series.layer, series.value, color=series.color, linewidth=1.0, zorder=1.5,
            linestyle="--" if series.dashed else "-", label="_control",
        )  # fmt: skip
    for series in view.series:
        if chart.controls_bare and series.dashed:  # five bands on one another hide the curves
            nothing = np.full(len(series.layer), np.nan)
            series = replace(series, low=nothing, high=nothing)
        canvas.draw(ax, series)
    if not any(np.isfinite(series.value).any() for series in view.series):
        ax.text(0.5, 0.5, "no numbers", ha="center", transform=ax.transAxes, fontsize=8)
    if view.note:
        ax.text(0.02, 0.97, view.note, transform=ax.transAxes, fontsize=canvas.SMALL,
                color=canvas.FAINT, va="top", parse_math=False)  # fmt: skip
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.12 * (high - low))  # the note is above the curves
    if view.warnings:
        ax.text(
            0.02, 0.03, "\n".join(f"⚠ {text}" for text in view.warnings), transform=ax.transAxes,
            fontsize=6, color="#9a3412", va="bottom", zorder=5, parse_math=False,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip


def _make_room(ax: Axes, lines: int) -> None:
    """Move the lower end of the y axis down, so that warnings do not cover curves."""
    low, high = ax.get_ylim()
    ax.set_ylim(low - 0.07 * lines * (high - low), high)


def _legend_columns(handles: Sequence[Line2D], width: float) -> int:
    """As many columns as fit, an even number of rows in each: a dataset's Q is above its A."""
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    fit = max(1, int(width / (0.5 + 0.055 * longest)))
    rows = -(-len(handles) // fit)
    if str(handles[0].get_label() if handles else "").startswith("Q-"):
        rows += rows % 2
    return max(1, -(-len(handles) // max(rows, 1)))


def _handles(chart: Chart, *, controls: bool = False) -> list[Line2D]:
    """One handle a label, in order of first appearance; controls apart, as they are grey."""
    seen = {s.label: s for view in chart.views for s in view.series}
    chosen = [s for s in seen.values() if (s.color == CONTROL) == controls]
    return [
        Line2D([], [], color=s.color, linestyle="--" if s.dashed else "-", lw=1.3, label=s.label)
        for s in chosen
    ]


def _plot_heads(run: RunView, chart: HeadMaps) -> Figure:
    """A map of blocks and heads per dataset: mean ΔP when one head alone is cut."""
    figure, axes = canvas.panels(1, len(chart.maps), share_y=True)
    drawn = None
    for ax, (title, effects) in zip(axes[0], chart.maps.items(), strict=True):
        ax.set_facecolor("#eeeeee")
        drawn = ax.imshow(
            effects, cmap="RdBu", vmin=-chart.reach, vmax=chart.reach, aspect="auto",
            origin="lower", extent=(-0.5, effects.shape[1] - 0.5, 0.5, effects.shape[0] + 0.5),
        )  # fmt: skip
        ax.grid(visible=False)
        ax.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        canvas.title(ax, title)
        ax.set_xlabel("Head", fontsize=canvas.TEXT, color=canvas.INK)
    axes[0, 0].set_ylabel("Block", fontsize=canvas.TEXT, color=canvas.INK)
    if drawn is not None:
        bar = figure.colorbar(drawn, ax=list(axes[0]), fraction=0.04, pad=0.02)
        bar.set_label("ΔP", fontsize=canvas.TEXT)
        bar.ax.tick_params(labelsize=canvas.SMALL)
    note = "Mean ΔP when a single head is kept from the exact question tokens; grey: not tried."
    canvas.footer(figure, [], columns=1, caption=f"{run.model_name}. {note}")
    return figure
