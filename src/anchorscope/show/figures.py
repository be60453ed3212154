"""Every figure of a run by its name; two smaller ones: the probes, and the controls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from anchorscope.errors import UserError
from anchorscope.run_folder.view import RunView
from anchorscope.show import canvas
from anchorscope.show.curves import (
    all_titles,
    auroc_series,
    color_of,
    dashed_note,
    intervention_names,
    intervention_series,
)
from anchorscope.show.delta_p import group_by_model, plot_delta_p
from anchorscope.show.evidence import PIECES


def plot_probes(runs: Sequence[RunView] | RunView) -> Figure:
    """AUROC of the clean probe by layer: a panel per model, a line per dataset."""
    views = _views(runs)
    columns, titles = group_by_model(views), all_titles(views)
    figure, axes = canvas.panels(1, len(columns), share_y=True)
    for ax, panel in zip(axes[0], columns, strict=True):
        canvas.title(ax, panel.title)
        ax.axhline(0.5, color="#888888", linewidth=0.7, linestyle=":")
        for series in (s for run in panel.runs for s in auroc_series(run, titles)):
            canvas.draw(ax, series)
    axes[0, 0].set_ylabel("AUROC (wrong against right)", fontsize=canvas.TEXT)
    handles = [
        Line2D([], [], color=color_of(i), lw=1.3, label=title)
        for i, title in enumerate(titles.values())
    ]
    note = "Each question is read by a probe that never saw it. Dotted: chance." + dashed_note(
        views
    )
    canvas.footer(figure, handles, columns=min(4, len(handles)), caption=note)
    return figure


def plot_controls(run: RunView) -> Figure:
    """Share of probe predictions that flip, by layer and intervention: a panel per dataset."""
    titles = run.titles
    figure, axes = canvas.panels(1, len(titles), share_y=True)
    for ax, (name, title) in zip(axes[0], titles.items(), strict=True):
        canvas.title(ax, title)
        _draw_interventions(ax, run, name)
    axes[0, 0].set_ylabel("Predictions that flip (%)", fontsize=canvas.TEXT)
    axes[0, 0].set_ylim(bottom=0)
    handles = [
        Line2D([], [], color=color, lw=1.3, label=label)
        for label, color in intervention_names(run.controls).values()
    ]
    note = f"{run.model_name}. What the answer is kept from seeing; bands: 95 % intervals."
    canvas.footer(figure, handles, columns=2 if len(titles) == 1 else 4, caption=note)
    return figure


def _draw_interventions(ax: Axes, run: RunView, dataset: str) -> None:
    for series in intervention_series(run, dataset):
        canvas.draw(ax, series)


def figure_of(run: RunView, name: str) -> Figure:
    """A figure of a run by its name; of the other evidence only the piece of that name is read."""
    draw = {
        "delta_p": partial(plot_delta_p, mode="paper"),
        "delta_p_strict": partial(plot_delta_p, mode="strict"),
        "delta_p_both": partial(plot_delta_p, mode="both"),
        "probes": plot_probes,
        "controls": plot_controls,
    }
    return draw[name](run) if name in draw else PIECES[name].draw(run)


def _views(runs: Sequence[RunView] | RunView) -> list[RunView]:
    views = [runs] if isinstance(runs, RunView) else list(runs)
    if not views:
        raise UserError("There is no run to draw. Give at least one finished run folder.")
    return views
