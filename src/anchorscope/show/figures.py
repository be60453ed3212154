"""Every figure of a run by its name, and the files under figures/.

Files are drawn in processes of their own: this one needs matplotlib only where it draws itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anchorscope.parallel import default_workers, in_parallel
from anchorscope.run_folder.view import RunView
from anchorscope.show.charts import Chart, HeadMaps, controls_chart, probes_chart
from anchorscope.show.delta_p import plot_delta_p
from anchorscope.show.evidence import PIECES, pieces_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ALWAYS = ("delta_p", "delta_p_strict", "delta_p_both", "probes", "controls")


def write_figures(run: RunView, *, workers: int | None = None) -> list[Path]:
    """The files under figures/: ΔP in each mode and in both, probes, controls, other evidence."""
    names, workers = figure_names(run), workers or default_workers()
    shares = [names[start::workers] for start in range(min(workers, len(names)))]
    files = chain(*in_parallel(partial(_write, run.path), shares, workers=workers))
    return sorted(files, key=lambda file: names.index(file.stem))


def _write(path: Path, names: Sequence[str]) -> list[Path]:
    """The files of these figures. The process opens the run once and holds one figure at a time."""
    from anchorscope.show.canvas import save_figure

    run = RunView.open(path, unfinished_ok=True)
    return [
        file
        for name in names
        for file in save_figure(figure_of(run, name), path / "figures" / name)
    ]


def figure_names(run: RunView) -> list[str]:
    """The figures of a run, all of which `figure_of` can draw."""
    return [*_ALWAYS, *(piece.name for piece in pieces_of(run))]


def figure_of(run: RunView, name: str) -> Figure:
    """A figure of a run by its name; of the other evidence only the piece of that name is read."""
    if name.startswith("delta_p"):
        modes = {"delta_p": "paper", "delta_p_strict": "strict", "delta_p_both": "both"}
        return plot_delta_p(run, mode=modes[name])  # type: ignore[arg-type]
    charts = {"probes": probes_chart, "controls": controls_chart}
    return _captioned(run, charts[name](run) if name in charts else PIECES[name].chart(run))


def plot_probes(run: RunView) -> Figure:
    """AUROC of the clean probe by layer: a line per dataset."""
    return figure_of(run, "probes")


def plot_controls(run: RunView) -> Figure:
    """Share of probe predictions that flip, by layer and intervention: a panel per dataset."""
    return figure_of(run, "controls")


def _captioned(run: RunView, chart: Chart | HeadMaps) -> Figure:
    from anchorscope.show.canvas import plot_chart, plot_heads

    caption = f"{run.model_name}. {chart.caption}"
    if isinstance(chart, HeadMaps):
        return plot_heads(chart, caption=caption)
    drawn = [series for view in chart.views for series in view.series]
    bands = " Bands: 95 % intervals." if any(np.isfinite(s.low).any() for s in drawn) else ""
    return plot_chart(chart, caption=caption + bands)
