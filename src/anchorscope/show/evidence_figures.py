"""Figures of the other evidence, each drawn where its table exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from anchorscope.show import canvas
from anchorscope.show.density import head_map, saliency
from anchorscope.show.evidence_views import CURVES, Piece, View
from anchorscope.show.load import RunView
from anchorscope.show.style import RANDOM, Series

PIECES: Mapping[str, Callable[[RunView], Piece]] = {**CURVES, "saliency": saliency}


def evidence_figures(run: RunView) -> dict[str, Callable[[], Figure]]:
    """Name -> how to draw it, of the evidence that the run holds."""
    there = [name for name in PIECES if name in run.evidence]
    found: dict[str, Callable[[], Figure]] = {
        name: partial(plot_piece, run, PIECES[name](run)) for name in there
    }
    if "heads" in run.evidence:
        found["heads"] = partial(plot_heads, run)
    return found


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


def plot_heads(run: RunView) -> Figure:
    """A map of blocks and heads per dataset: mean ΔP when one head alone is cut."""
    maps = {title: head_map(run, name) for name, title in run.titles.items()}
    reach = max((float(np.nanmax(np.abs(m))) for m in maps.values() if np.isfinite(m).any()),
                default=1.0) or 1.0  # fmt: skip
    figure, axes = canvas.panels(1, len(maps), share_y=True)
    drawn = None
    for ax, (title, values) in zip(axes[0], maps.items(), strict=True):
        ax.set_facecolor("#eeeeee")
        drawn = ax.imshow(
            values, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto", origin="lower",
            extent=(-0.5, values.shape[1] - 0.5, 0.5, values.shape[0] + 0.5),
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


def _draw(ax: Axes, view: View, piece: Piece) -> None:
    if piece.unit == "share" and piece.zero:
        ax.axhline(piece.zero, color="#888888", linewidth=0.7, linestyle=":")
    elif piece.name not in ("boundary", "saliency"):
        ax.axhline(piece.zero, color="#444444", linewidth=0.7, zorder=1)
    for series in view.series:
        canvas.draw(ax, _bare(series) if piece.name == "awareness" and series.dashed else series)
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
    found = [s for s in seen.values() if (s.color == RANDOM) == controls]
    return [
        Line2D([], [], color=s.color, linestyle="--" if s.dashed else "-", lw=1.3, label=s.label)
        for s in found
    ]


def _bare(series: Series) -> Series:
    """Without its band: five of them on one another hide the curves."""
    nothing = np.full(len(series.layer), np.nan)
    return replace(series, low=nothing, high=nothing)


def _has_bands(piece: Piece) -> bool:
    return any(np.isfinite(s.low).any() for view in piece.views for s in view.series)


def _has_few(piece: Piece) -> bool:
    return any(s.few.any() for view in piece.views for s in view.series)
