"""The files under figures/, drawn in processes of their own.

This process needs matplotlib only where it draws itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from anchorscope.parallel import default_workers, in_parallel
from anchorscope.run_folder.view import RunView
from anchorscope.show.evidence import pieces_of

_ALWAYS = ("delta_p", "delta_p_strict", "delta_p_both", "probes", "controls")


def write_figures(run: RunView, *, workers: int | None = None) -> list[Path]:
    """The files under figures/: ΔP in each mode and in both, probes, controls, other evidence."""
    names, workers = figure_names(run), workers or default_workers()
    shares = [names[start::workers] for start in range(min(workers, len(names)))]
    files = chain(*in_parallel(partial(_write, run.path), shares, workers=workers))
    return sorted(files, key=lambda file: names.index(file.stem))


def figure_names(run: RunView) -> list[str]:
    """The figures of a run, all of which `figure_of` can draw."""
    return [*_ALWAYS, *(shown.name for shown in pieces_of(run))]


def _write(path: Path, names: Sequence[str]) -> list[Path]:
    """The files of these figures. The process opens the run once and holds one figure at a time."""
    from anchorscope.show.canvas import save_figure  # these two need matplotlib
    from anchorscope.show.figures import figure_of

    run = RunView.open(path, unfinished_ok=True)
    return [
        file
        for name in names
        for file in save_figure(figure_of(run, name), path / "figures" / name)
    ]
