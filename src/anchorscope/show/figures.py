"""Draw the figures of a run: ΔP by layer as published, and the others by name.

Files are drawn in worker processes: this one imports matplotlib only if it draws a figure itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from anchorscope.errors import UserError, unknown
from anchorscope.parallel import in_parallel
from anchorscope.records import MODES, Mode
from anchorscope.run_folder.view import RunView, where
from anchorscope.show.charts import (
    Chart,
    Maps,
    View,
    all_titles,
    collapse_notes,
    controls_chart,
    null_series,
    pathway_series,
    probes_chart,
)
from anchorscope.show.evidence import PIECES, pieces_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Reading = Literal["paper", "strict", "both"]
MODE_TITLES: Mapping[Mode, str] = {
    "paper": "Paper mode: groups and effects from the same probe, so some of the gap is built in",
    "strict": "Strict mode: groups from one probe, effects from another, on unseen questions",
}

_MODES: Mapping[str, Reading] = {
    "delta_p": "paper", "delta_p_strict": "strict", "delta_p_both": "both",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Style:
    """Size of a figure for a paper or slides, whose caption is in the text around it."""

    width: float  # inches
    height: float | None = None  # inches; None: as much as the panels and the legend need
    dpi: float = 300


# Text is 8 points high. A slide shows these 6 inches on 13.3, and the text as 18 points.
STYLES: Mapping[str, Style] = {
    "paper": Style(width=7.0),
    "slides": Style(width=6.0, height=3.375, dpi=320),
}


@dataclass
class Panel:
    """The runs of one model, drawn together."""

    title: str
    runs: list[RunView] = field(default_factory=list)

    def rows(self, table: Literal["layers", "control_layers"], mode: Mode) -> pd.DataFrame:
        """The rows of one mode of a table, of all runs together."""
        return where(pd.concat([getattr(run, table) for run in self.runs]), mode=mode)


def plot_delta_p(
    runs: Sequence[RunView] | RunView, *, mode: Reading = "strict", style: Style | None = None
) -> Figure:
    """Draw ΔP by layer: a column of panels per model, a row per mode, one legend below.

    The two modes of one model are side by side.

    Args:
        runs: One finished run or several.
        mode: strict, paper, or both.
        style: Size of a figure for a paper or slides, which has no caption (`caption_of` gives
            it).

    Returns:
        A figure of matplotlib.

    Examples:
        >>> import anchorscope as anc
        >>> figure = anc.plot_delta_p(anc.RunView.open("runs/atlas"), mode="both")
        >>> len(figure.axes)
        2
        >>> figure.savefig("delta_p.png")

    """
    from anchorscope.show.canvas import plot_chart  # needs matplotlib

    views = [runs] if isinstance(runs, RunView) else list(runs)
    if not views:
        raise UserError("There is no run to draw. Give at least one finished run folder.")
    if mode not in (*MODES, "both"):
        raise unknown("mode", mode, (*MODES, "both"))
    chart = delta_p_chart(views, MODES if mode == "both" else (mode,))
    if style is None:
        return plot_chart(chart, caption=_caption(views, mode))
    return plot_chart(chart, width=style.width, height=style.height)


def delta_p_chart(runs: Sequence[RunView], modes: Sequence[Mode] = MODES) -> Chart:
    """ΔP by layer: a view per mode and model, all on one y range so that they compare."""
    titles, panels = all_titles(runs), group_by_model(runs)
    beside = len(panels) == 1 and len(modes) > 1
    views = [
        View(
            row="" if beside or len(modes) == 1 else f"{mode} mode",
            column=f"{panel.title}, {mode} mode" if beside else panel.title,
            switch=f"{mode.capitalize()} mode",
            y=f"ΔP ({runs[0].unit})",
            series=pathway_series(panel.rows("layers", mode), titles),
            nulls=null_series(panel.runs, titles, mode),
            controls=pathway_series(panel.rows("control_layers", mode), titles, control=True),
            warnings=collapse_notes(panel.runs, titles),
        )
        for mode in modes
        for panel in panels
    ]
    return Chart(views=views)


def caption_of(runs: Sequence[RunView], mode: Reading) -> str:
    """The caption of the figure of these runs, for the text around it."""
    start = "Solid: question-anchored (Q). Dashed: answer-anchored (A). "
    return start + _caption(runs, mode).replace("\u00a0", " ")


def group_by_model(runs: Sequence[RunView]) -> list[Panel]:
    """One panel per model; a second run of the same model and dataset gets its own panel."""
    panels: list[Panel] = []
    for run in runs:
        for panel in panels:
            drawn = {name for other in panel.runs for name in other.titles}
            if panel.title == run.model_name and not drawn & run.titles.keys():
                panel.runs.append(run)
                break
        else:
            panels.append(Panel(run.model_name, [run]))
    names = [panel.title for panel in panels]
    for panel in panels:
        if names.count(panel.title) > 1:
            panel.title = f"{panel.title} ({panel.runs[0].path.name})"
    return panels


def _caption(runs: Sequence[RunView], mode: Reading) -> str:
    """The caption in one line: mode, what was cut, bands, and the number of questions."""
    reading = "Paper mode and strict mode" if mode == "both" else MODE_TITLES[mode]
    switches, words = [], {"pre": "before the softmax", "post": "after the softmax"}
    for key in ("layers", "where", "finder", "grouping"):
        value = _agreed(runs, key)
        if value not in (None, "auto", "per-layer"):
            prefix = f"{key} " if key in ("finder", "grouping") else ""
            switches.append(prefix + words.get(str(value), str(value)))
    keys = f"{_agreed(runs, 'keys') or 'exact'} tokens".replace("exact", "exact question")
    cut = keys + (f" ({', '.join(switches)})" if switches else "")
    counts = _counts(group_by_model(runs), all_titles(runs))
    return f"{reading}. Knockout of {cut}. Bands: 95 % bootstrap intervals. {counts}."


def _agreed(runs: Sequence[RunView], key: str) -> str | None:
    """The value of a setting that all runs record and agree on."""
    values = {str(run.config[key]) for run in runs if key in run.config}
    return values.pop() if len(values) == 1 else None


def _counts(panels: Sequence[Panel], titles: Mapping[str, str]) -> str:
    """The number of questions by panel and dataset: Q and A, at the layer with the most."""
    parts = []
    for panel in panels:
        layers = pd.concat([run.layers for run in panel.runs])
        most = layers.pivot_table("n", ["mode", "layer"], "dataset", "sum").max().astype(int)
        counts = [f"{most[name]} {title}" for name, title in titles.items() if most.get(name)]
        each = ", ".join(count.replace(" ", "\u00a0") for count in counts)  # kept on one line
        parts.append(each if len(panels) == 1 else f"{panel.title}: {each}")
    return "n\u00a0=\u00a0" + ("; ".join(parts) or "0")


# --- The figures of a run, by name ---


def write_figures(run: RunView, *, workers: int | None = None) -> list[Path]:
    """Write the figures: ΔP in each mode and in both, probes, controls, other evidence."""
    write = partial(_write, run.path)
    return list(chain(*in_parallel(write, figure_names(run), workers=workers)))


def _write(path: Path, name: str) -> tuple[Path, ...]:
    """Draw and save a figure; the run is opened where it is drawn, in a process of its own."""
    from anchorscope.show.canvas import save_figure

    run = RunView.open(path, unfinished_ok=True)
    return save_figure(figure_of(run, name), path / "figures" / name)


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
