"""Every figure of a run by its name: probes, controls, and the other evidence."""

from __future__ import annotations

from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from anchorscope.run_folder.view import RunView
from anchorscope.show import canvas
from anchorscope.show.charts import Chart, HeadMaps, controls_chart, probes_chart
from anchorscope.show.delta_p import plot_delta_p
from anchorscope.show.evidence import PIECES


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
    return canvas.plot_chart(chart, caption=f"{run.model_name}. {chart.caption}{bands}")


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
