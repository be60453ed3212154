"""The curves of one piece of evidence, drawn: a figure for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from anchorscope.run_folder.view import RunView
from anchorscope.show import canvas
from anchorscope.show.curves import CONTROL, Series
from anchorscope.show.evidence.piece import Piece, View


def plot_piece(run: RunView, piece: Piece) -> Figure:
    """A panel per view, in the rows and columns that the views name; one legend below."""
    rows = list(dict.fromkeys(view.row for view in piece.views))
    columns = list(dict.fromkeys(view.column for view in piece.views))
    figure, axes = canvas.panels(len(rows), len(columns), share_y=piece.share_y)
    for ax in axes.flat:
        ax.set_axis_off()
    for view in piece.views:
        ax = axes[rows.index(view.row), columns.index(view.column)]
        ax.set_axis_on()
        _draw(ax, view, piece)
        last, first = view.row == rows[-1], view.column == columns[0]
        ax.set_xlabel(piece.x if last else "", fontsize=canvas.TEXT, color=canvas.INK)
        if view.row == rows[0]:
            canvas.title(ax, view.column)
        if first or not piece.share_y:
            y = f"{view.y}\n{view.row}" if view.row and first else view.y
            ax.set_ylabel(y, fontsize=canvas.TEXT, color=canvas.INK)
    handles = _handles(piece)
    bands = " Bands: 95 % intervals." if _has_bands(piece) else ""
    canvas.footer(
        figure,
        handles,
        columns=_legend_columns(handles, figure.get_figwidth()),
        notes=[
            *_handles(piece, controls=True),
            *([canvas.few_handle()] if _has_few(piece) else []),
        ],
        caption=f"{run.model_name}. {piece.caption}{bands}",
    )
    return figure


def _draw(ax: Axes, view: View, piece: Piece) -> None:
    if piece.unit == "share" and piece.zero:
        ax.axhline(piece.zero, color="#888888", linewidth=0.7, linestyle=":")
    elif piece.zero_line:
        ax.axhline(piece.zero, color="#444444", linewidth=0.7, zorder=1)
    for series in view.series:
        canvas.draw(ax, _bare(series) if piece.controls_bare and series.dashed else series)
    if not any(np.isfinite(series.value).any() for series in view.series):
        ax.text(0.5, 0.5, "no numbers", ha="center", transform=ax.transAxes, fontsize=8)
    if view.note:
        ax.text(0.02, 0.97, view.note, transform=ax.transAxes, fontsize=canvas.SMALL,
                color=canvas.FAINT, va="top", parse_math=False)  # fmt: skip
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.12 * (high - low))  # the note lies above the curves


def _legend_columns(handles: Sequence[Line2D], width: float) -> int:
    """As many columns as fit, an even number of rows in each: a dataset's Q stands above its A."""
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    fit = max(1, int(width / (0.5 + 0.055 * longest)))
    rows = -(-len(handles) // fit)
    if str(handles[0].get_label() if handles else "").startswith("Q-"):
        rows += rows % 2
    return max(1, -(-len(handles) // max(rows, 1)))


def _handles(piece: Piece, *, controls: bool = False) -> list[Line2D]:
    """One handle a label, in order of first appearance; controls apart, as they are grey."""
    seen = {s.label: s for view in piece.views for s in view.series}
    chosen = [s for s in seen.values() if (s.color == CONTROL) == controls]
    return [
        Line2D([], [], color=s.color, linestyle="--" if s.dashed else "-", lw=1.3, label=s.label)
        for s in chosen
    ]


def _bare(series: Series) -> Series:
    """Without its band: five of them on one another hide the curves."""
    nothing = np.full(len(series.layer), np.nan)
    return replace(series, low=nothing, high=nothing)


def _has_bands(piece: Piece) -> bool:
    return any(np.isfinite(s.low).any() for view in piece.views for s in view.series)


def _has_few(piece: Piece) -> bool:
    return any(s.few.any() for view in piece.views for s in view.series)
