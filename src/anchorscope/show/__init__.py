"""Figures for papers, and self-contained HTML pages.

matplotlib is imported where something is drawn, so that a run and its report do not wait for it.
"""

from __future__ import annotations

from anchorscope.run_folder.view import RunView
from anchorscope.show.figures import plot_delta_p, write_figures
from anchorscope.show.report import write_report

__all__ = [
    "RunView",
    "plot_delta_p",
    "write_figures",
    "write_report",
]
