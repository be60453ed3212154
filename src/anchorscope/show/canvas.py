"""Figures of fixed size in inches: panels above, legend and caption below; saved as files."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from anchorscope.run_folder.disk import write_atomic
from anchorscope.show.curves import FEW, Series

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")

PANEL_WIDTH, PANEL_HEIGHT = 3.5, 2.55  # inches: one panel fills a column, two fill a page
TEXT, SMALL = 8.0, 6.5  # points
INK, FAINT = "#222222", "#666666"
_DPI = 200
_DIGITS = 9  # of a panel's place, as a share of the figure
_LINE = 0.155  # inches of height per line of legend or caption


def panels(
    rows: int, columns: int, *, share_y: bool, width: float | None = None
) -> tuple[Figure, np.ndarray]:
    """A figure without pyplot and its axes `[row, column]`; `width` is that of the whole."""
    size = (width or PANEL_WIDTH * columns, PANEL_HEIGHT * rows)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    for ax in axes.flat:
        _style(ax)
    return figure, axes


def _style(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set(linewidth=0.6, color=FAINT)
    ax.tick_params(labelsize=SMALL + 0.5, width=0.6, length=2.5, color=FAINT, labelcolor=INK)
    ax.grid(axis="y", linewidth=0.4, color="#e6e6e6")
    ax.set_axisbelow(True)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    ax.set_xlabel("Layer", fontsize=TEXT, color=INK)


def title(ax: Axes, text: str) -> None:
    """Set a panel's title as plain text: a dollar sign in a model's name is not mathematics."""
    ax.set_title(text, fontsize=TEXT + 1, color=INK, parse_math=False)


def draw(ax: Axes, series: Series) -> Line2D:
    """Draw a curve with its band; points without neighbours or with few samples get a dot."""
    (line,) = ax.plot(
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
    return line


def few_handle() -> Line2D:
    return Line2D(
        [],
        [],
        linestyle="none",
        marker="o",
        markersize=2.8,
        markerfacecolor="white",
        markeredgecolor=FAINT,
        label=f"fewer than {FEW} samples",
    )


def footer(
    figure: Figure,
    handles: Sequence[Line2D],
    *,
    columns: int,
    notes: Sequence[Artist] = (),
    caption: str = "",
    height: float | None = None,
) -> None:
    """Add the legend, notes that explain marks, and the caption below the panels.

    The figure grows by them, or the panels give way where the whole has a `height`.
    """
    lines = textwrap.wrap(caption, width=int(figure.get_figwidth() * 20))
    rows = -(-len(handles) // columns) if handles else 0
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
    with (
        mpl.rc_context({"svg.hashsalt": "anchorscope", "pdf.fonttype": 42}),
        _laid_out(figure, dpi),
    ):
        for form in formats:
            file = stem.with_name(f"{stem.name}.{form}")
            metadata = cast(Any, undated[form])
            drawn = io.BytesIO()
            figure.savefig(drawn, format=form, dpi=dpi, facecolor="white", metadata=metadata)
            files.append(write_atomic(file, drawn.getvalue()))
    return tuple(files)


@contextmanager
def _laid_out(figure: Figure, sharpness: float) -> Iterator[None]:
    """Place the panels once: otherwise every format would place them, and draw the figure twice."""
    engine, dpi = figure.get_layout_engine(), figure.dpi
    if engine is None:
        yield
        return
    figure.set_dpi(sharpness)
    engine.execute(figure)
    figure.set_layout_engine(None)
    for ax in figure.axes:
        # The solver's last digit depends on the addresses of its variables, and a clip path of an
        # SVG is named after every digit.
        ax.set_position(np.round(ax.get_position(original=True).bounds, _DIGITS).tolist())
        ax.set_in_layout(True)
    try:
        yield
    finally:
        figure.set_layout_engine(engine)
        figure.set_dpi(dpi)
