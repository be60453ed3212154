"""Figures for a paper, and a report in one HTML file.

Functions that draw are imported when they are first used, so that a run and its report do not wait
for matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from anchorscope.run_folder.view import RunView
from anchorscope.show.figure_files import write_figures
from anchorscope.show.report.page import write_report

if TYPE_CHECKING:
    from anchorscope.show.canvas import save_figure
    from anchorscope.show.delta_p import plot_delta_p
    from anchorscope.show.figures import plot_controls, plot_probes

_HOME = {
    "plot_controls": "figures",
    "plot_delta_p": "delta_p",
    "plot_probes": "figures",
    "save_figure": "canvas",
}

__all__ = [
    "RunView",
    "plot_controls",
    "plot_delta_p",
    "plot_probes",
    "save_figure",
    "write_figures",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'anchorscope.show' has no attribute '{name}'")
    return getattr(import_module(f"anchorscope.show.{_HOME[name]}"), name)
