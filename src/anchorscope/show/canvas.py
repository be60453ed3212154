"""Draw charts with matplotlib: panels above, legend and caption below; save them as files."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from anchorscope.run_folder.disk import write_atomic
from anchorscope.show.charts import (
    CONTROL,
    CONTROL_LABEL,
    FEW,
    NULL_LABEL,
    Chart,
    Maps,
    Series,
    View,
)

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")

PANEL_WIDTH, PANEL_HEIGHT = 3.5, 2.55  # inches: one panel fills a column, two fill a page
TEXT, SMALL = 8.0, 6.5  # points
INK, FAINT = "#222222", "#666666"
_DPI = 200
_HATCH = "////"
_DIGITS = 9  # of a panel's place, as a share of the figure
_LINE = 0.155  # inches of height per line of legend or caption


def panels(
    rows: int, columns: int, *, share_y: bool, width: float | None = None
) -> tuple[Figure, np.ndarray]:
    """A figure without pyplot, and its axes [row, column]; `width` is the whole figure's."""
    size = (width or PANEL_WIDTH * columns, PANEL_HEIGHT * rows)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set(linewidth=0.6, color=FAINT)
        ax.tick_params(labelsize=SMALL + 0.5, width=0.6, length=2.5, color=FAINT, labelcolor=INK)
        ax.grid(axis="y", linewidth=0.4, color="#e6e6e6")
        ax.set_axisbelow(True)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    return figure, axes


def title(ax: Axes, text: str) -> None:
    """Set a panel's title as plain text: a dollar sign in a model's name is not mathematics."""
    ax.set_title(text, fontsize=TEXT + 1, color=INK, parse_math=False)


def _draw_curve(ax: Axes, series: Series) -> None:
    """Draw a curve with its band; points without neighbours or with few samples get a dot."""
    ax.plot(
        series.layer,
        series.value,
        color=series.color,
        linestyle="--" if series.dashed else "-",
        linewidth=1.3,
        marker="o",
        markersize=2.6,
        markerfacecolor="white",
        markeredgewidth=0.7,
        markevery=np.flatnonzero(series.alone | series.few).tolist(),
        label=series.label,
    )
    if np.isfinite(series.low).any():
        ax.fill_between(
            series.layer, series.low, series.high, color=series.color, alpha=0.16, linewidth=0
        )
    if (at := series.alone).any():
        ends = series.low[at], series.high[at]
        ax.vlines(series.layer[at], *ends, color=series.color, linewidth=0.6)


def plot_chart(
    chart: Chart, *, caption: str = "", width: float | None = None, height: float | None = None
) -> Figure:
    """Draw a chart: a panel per view, in the row and column that it names; one legend below."""
    rows = list(dict.fromkeys(view.row for view in chart.views))
    columns = list(dict.fromkeys(view.column for view in chart.views))
    figure, axes = panels(len(rows), len(columns), share_y=chart.share_y, width=width)
    for ax in axes.flat:
        ax.set_axis_off()
    for view in chart.views:
        ax = axes[rows.index(view.row), columns.index(view.column)]
        ax.set_axis_on()
        _draw_view(ax, view, chart)
        last, first = view.row == rows[-1], view.column == columns[0]
        ax.set_xlabel(chart.x if last else "", fontsize=TEXT, color=INK)
        if view.row == rows[0]:
            title(ax, view.column)
        if first or not chart.share_y:
            y = f"{view.y}\n{view.row}" if view.row and first else view.y
            ax.set_ylabel(y, fontsize=TEXT, color=INK)
    if chart.share_y:  # the warnings are below the curves
        low, high = axes[0, 0].get_ylim()
        lines = max(len(view.warnings) for view in chart.views)
        axes[0, 0].set_ylim(low - 0.07 * lines * (high - low), high)
    _footer(figure, *_legend_entries(chart), caption=caption, height=height)
    return figure


def _legend_entries(chart: Chart) -> tuple[list[Line2D], list[Artist]]:
    """An entry per label in order of appearance, and one for each other kind of mark."""
    curves: list[Line2D] = []
    notes: list[Artist] = []
    for s in {s.label: s for view in chart.views for s in view.series}.values():
        look = {"color": s.color, "linestyle": "--" if s.dashed else "-", "lw": 1.3}
        (notes if s.color == CONTROL else curves).append(Line2D([], [], label=s.label, **look))
    if any(view.controls for view in chart.views):
        notes.append(Line2D([], [], color=CONTROL, lw=1.0, label=CONTROL_LABEL))
    if any(view.nulls for view in chart.views):
        look = {"facecolor": "none", "edgecolor": "#888888", "hatch": _HATCH, "linewidth": 0}
        notes.append(Patch(**look, label=NULL_LABEL))
    if any(series.few.any() for view in chart.views for series in view.series):
        few = {"marker": "o", "markersize": 2.8, "markerfacecolor": "white"}
        label = f"fewer than {FEW} samples"
        notes.append(Line2D([], [], ls="none", markeredgecolor=FAINT, label=label, **few))
    return curves, notes


def _draw_view(ax: Axes, view: View, chart: Chart) -> None:
    if chart.zero is not None:
        chance = chart.zero > 0
        ax.axhline(chart.zero, color="#888888" if chance else "#444444", linewidth=0.7, zorder=1,
                   linestyle=":" if chance else "-")  # fmt: skip
    if chart.x != "Layer":
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5))
    if chart.diagonal:
        ax.plot([0, 1], [0, 1], color="#888888", linewidth=0.7, linestyle=":", label="_diagonal")
    for series in view.nulls:
        ax.fill_between(
            series.layer, series.low, series.high, facecolor="none", edgecolor=series.color,
            alpha=0.55, hatch=_HATCH, linewidth=0.6, zorder=0.8, label="_null",
        )  # fmt: skip
    for series in view.controls:
        ax.plot(
            series.layer, series.value, color=series.color, linewidth=1.0, zorder=1.5,
            linestyle="--" if series.dashed else "-", label="_control",
        )  # fmt: skip
    for series in view.series:
        _draw_curve(ax, series)
    if not any(np.isfinite(series.value).any() for series in view.series):
        ax.text(0.5, 0.5, "no numbers", ha="center", transform=ax.transAxes, fontsize=8)
    if view.note:
        ax.text(0.02, 0.97, view.note, transform=ax.transAxes, fontsize=SMALL,
                color=FAINT, va="top", parse_math=False)  # fmt: skip
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.12 * (high - low))  # the note is above the curves
    if view.warnings:
        ax.text(
            0.02, 0.03, "\n".join(f"⚠ {text}" for text in view.warnings), transform=ax.transAxes,
            fontsize=6, color="#9a3412", va="bottom", zorder=5, parse_math=False,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip


def plot_maps(chart: Maps, *, caption: str) -> Figure:
    """Draw heat maps, three in a row, with a colour bar or a number in each cell."""
    columns, numbered = min(3, len(chart.maps)), chart.names is None
    figure, axes = panels(-(-len(chart.maps) // columns), columns, share_y=numbered)
    low, high = chart.ends
    for ax in axes.flat[len(chart.maps) :]:
        ax.set_visible(False)
    for ax, (name, cells) in zip(axes.flat, chart.maps.items(), strict=False):
        rows, width = cells.shape
        extent = (-0.5, width - 0.5, 0.5, rows + 0.5) if numbered else None
        ax.imshow(
            cells, vmin=low, vmax=high, cmap="RdBu" if numbered else "viridis", aspect="auto",
            origin="lower" if numbered else "upper", extent=extent,
        )  # fmt: skip
        ax.grid(visible=False)
        ax.set_facecolor("#eeeeee")
        ax.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        title(ax, name)
        ax.set_xlabel(chart.x, fontsize=TEXT, color=INK)
        if chart.names is not None:
            ax.set_yticks(range(rows), chart.names[0])
            ax.set_xticks(range(width), chart.names[1])
            for (row, column), value in np.ndenumerate(cells):  # dark on light cells
                text, color = (
                    f"{value:.2f}",
                    "black" if value > low + 0.6 * (high - low) else "white",
                )
                if not np.isfinite(value):
                    text, color = "–", FAINT
                ax.text(column, row, text, ha="center", va="center", fontsize=SMALL, color=color)
    axes[0, 0].set_ylabel(chart.y, fontsize=TEXT, color=INK)
    if numbered:
        bar = figure.colorbar(axes[0, 0].images[0], ax=list(axes.flat), fraction=0.04, pad=0.02)
        bar.set_label("ΔP", fontsize=TEXT)
        bar.ax.tick_params(labelsize=SMALL)
    _footer(figure, [], [], caption=caption)
    return figure


def _legend_columns(handles: Sequence[Line2D], width: float) -> int:
    """The number of legend columns that fit; rows are even, so that each Q is above its A."""
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    fit = max(1, int(width / (0.5 + 0.055 * longest)))
    rows = -(-len(handles) // fit)
    if str(handles[0].get_label() if handles else "").startswith("Q-"):
        rows += rows % 2
    return max(1, -(-len(handles) // max(rows, 1)))


def _footer(
    figure: Figure,
    handles: Sequence[Line2D],
    notes: Sequence[Artist],
    *,
    caption: str,
    height: float | None = None,
) -> None:
    """Add the legend, notes that explain marks, and the caption below the panels.

    The figure grows to hold them, or the panels shrink if `height` is given.
    """
    lines = textwrap.wrap(caption, width=int(figure.get_figwidth() * 20))
    columns = _legend_columns(handles, figure.get_figwidth())
    rows = -(-len(handles) // columns)
    # Two notes fill the width of one panel.
    per_line = max(1, min(len(notes), round(2 * figure.get_figwidth() / PANEL_WIDTH)))
    parts = [rows * _LINE, -(-len(notes) // per_line) * _LINE, len(lines) * _LINE * 0.8]
    below = sum(parts) + 0.1
    height = height or figure.get_figheight() + below
    figure.set_figheight(height)
    engine = figure.get_layout_engine()
    cast(Any, engine).set(rect=(0, below / height, 1, 1 - below / height))
    if handles:
        _legend(figure, handles, columns, below / height, TEXT - 0.8)
    if notes:
        _legend(figure, notes, per_line, (below - parts[0]) / height, SMALL)
    for index, text in enumerate(reversed(lines)):
        y = (0.05 + index * _LINE * 0.8) / height
        figure.text(0.5, y, text, ha="center", fontsize=SMALL, color=FAINT, parse_math=False)


def _legend(
    figure: Figure, handles: Sequence[Artist], columns: int, top: float, size: float
) -> None:
    legend = figure.legend(
        handles=cast(Sequence[Artist], handles),
        loc="upper center",
        bbox_to_anchor=(0.5, top),
        ncols=columns,
        fontsize=size,
        frameon=False,
        handlelength=2.4,
        columnspacing=1.4,
        labelspacing=0.35,
        borderaxespad=0.2,
        borderpad=0,
        labelcolor=INK,
    )
    # Legends are placed by hand here; the layout would make room for them twice.
    legend.set_in_layout(False)
    for text in legend.get_texts():
        text.set_parse_math(False)


def save_figure(
    figure: Figure, stem: str | Path, *, formats: Sequence[Format] = FORMATS, dpi: float = _DPI
) -> tuple[Path, ...]:
    """Save the figure in each format; the same figure gives the same bytes."""
    stem = Path(stem)
    undated: dict[Format, dict[str, None]] = {
        "png": {},
        "svg": {"Date": None},
        "pdf": {"CreationDate": None},
    }
    files: list[Path] = []
    _fix_layout(figure, dpi)
    with mpl.rc_context({"svg.hashsalt": "anchorscope", "pdf.fonttype": 42}):
        for form in formats:
            file = stem.with_name(f"{stem.name}.{form}")
            metadata = cast(Any, undated[form])
            drawn = io.BytesIO()
            figure.savefig(drawn, format=form, dpi=dpi, facecolor="white", metadata=metadata)
            files.append(write_atomic(file, drawn.getvalue()))
    return tuple(files)


def _fix_layout(figure: Figure, dpi: float) -> None:
    """Compute the layout once: otherwise every format computes it, and draws the figure twice."""
    if (engine := figure.get_layout_engine()) is None:
        return
    figure.set_dpi(dpi)
    engine.execute(figure)
    figure.set_layout_engine(None)
    for ax in figure.axes:
        # The solver's last digit depends on the addresses of its variables, and a clip path of an
        # SVG is named after every digit.
        ax.set_position(np.round(ax.get_position(original=True).bounds, _DIGITS).tolist())
        ax.set_in_layout(True)
