"""Every figure of a run under figures/; two smaller ones: the probes, and the controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from anchorscope.errors import UserError
from anchorscope.parallel import default_workers, in_parallel
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
from anchorscope.show.evidence import pieces_of

Wanted = tuple[str, tuple[canvas.Format, ...]]  # a figure by name, and formats of it
_APART: tuple[tuple[canvas.Format, ...], ...] = (canvas.FORMATS[:-1], canvas.FORMATS[-1:])


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
        Line2D([], [], color=color_of(i, "Q"), lw=1.3, label=title)
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


def write_figures(run: RunView, *, workers: int | None = None) -> list[Path]:
    """The files under figures/: ΔP in each mode and in both, probes, controls, other evidence."""
    names, workers = list(_figures(run)), workers or default_workers()
    # A PDF takes as long as the other two: where there are cores enough it is drawn apart.
    apart = workers >= 2 * len(names)
    wanted = [(name, of) for of in (_APART if apart else (canvas.FORMATS,)) for name in names]
    shares = min(workers, len(wanted))
    # Each process opens the run once and has one figure in memory at a time.
    dealt = [wanted[start::shares] for start in range(shares)]
    drawn = in_parallel(partial(_write, run.path), dealt, workers=workers)
    files = dict(zip(chain(*dealt), chain(*drawn), strict=True))
    return sorted((file for of in files.values() for file in of), key=_order(names))


def _order(names: Sequence[str]) -> Callable[[Path], tuple[int, int]]:
    """The order of the files: figure by figure, format by format."""
    formats = [f".{form}" for form in canvas.FORMATS]
    return lambda file: (names.index(file.stem), formats.index(file.suffix))


def _write(path: Path, wanted: Sequence[Wanted]) -> list[tuple[Path, ...]]:
    """The files of each of these figures."""
    run = RunView.open(path, unfinished_ok=True)
    figures = _figures(run)
    return [
        canvas.save_figure(figures[name](), path / "figures" / name, formats=formats)
        for name, formats in wanted
    ]


def _figures(run: RunView) -> dict[str, Callable[[], Figure]]:
    """How each figure of a run is drawn, by its name."""
    return {
        "delta_p": partial(plot_delta_p, run, mode="paper"),
        "delta_p_strict": partial(plot_delta_p, run, mode="strict"),
        "delta_p_both": partial(plot_delta_p, run, mode="both"),
        "probes": partial(plot_probes, run),
        "controls": partial(plot_controls, run),
        **{shown.name: partial(shown.draw, run) for shown in pieces_of(run)},
    }


def _views(runs: Sequence[RunView] | RunView) -> list[RunView]:
    views = [runs] if isinstance(runs, RunView) else list(runs)
    if not views:
        raise UserError("There is no run to draw. Give at least one finished run folder.")
    return views
