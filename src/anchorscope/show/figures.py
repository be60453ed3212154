"""Draw the figures of a run by name, and write them under figures/.

Files are drawn in worker processes: this one imports matplotlib only if it draws a figure itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anchorscope.parallel import default_workers, in_parallel
from anchorscope.run_folder.view import RunView
from anchorscope.show.charts import Maps, controls_chart, probes_chart
from anchorscope.show.delta_p import Reading, plot_delta_p
from anchorscope.show.evidence import PIECES, pieces_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MODES: Mapping[str, Reading] = {
    "delta_p": "paper", "delta_p_strict": "strict", "delta_p_both": "both",
}  # fmt: skip


def write_figures(run: RunView, *, workers: int | None = None) -> list[Path]:
    """Write the figures: ΔP in each mode and in both, probes, controls, other evidence."""
    names, workers = figure_names(run), workers or default_workers()
    shares = [names[start::workers] for start in range(min(workers, len(names)))]
    files = chain(*in_parallel(partial(_write, run.path), shares, workers=workers))
    return sorted(files, key=lambda file: names.index(file.stem))


def _write(path: Path, names: Sequence[str]) -> list[Path]:
    """Draw and save these figures; open the run once and hold one figure at a time."""
    from anchorscope.show.canvas import save_figure

    run = RunView.open(path, unfinished_ok=True)
    return [
        file
        for name in names
        for file in save_figure(figure_of(run, name), path / "figures" / name)
    ]


def figure_names(run: RunView) -> list[str]:
    """The names of a run's figures, as `figure_of` takes them."""
    return [*_MODES, "probes", "controls", *pieces_of(run)]


def figure_of(run: RunView, name: str) -> Figure:
    """Draw a figure of a run by its name; read only the piece of evidence that it shows."""
    from anchorscope.show.canvas import plot_chart, plot_maps

    if name in _MODES:
        return plot_delta_p(run, mode=_MODES[name])
    draw = {"probes": probes_chart, "controls": controls_chart}.get(name) or PIECES[name][1]
    chart = draw(run)
    caption = f"{run.model_name}. {chart.caption}"
    if isinstance(chart, Maps):
        return plot_maps(chart, caption=caption)
    drawn = [series for view in chart.views for series in view.series]
    bands = " Bands: 95 % intervals." if any(np.isfinite(s.low).any() for s in drawn) else ""
    return plot_chart(chart, caption=caption + bands)
