"""What a person looks at: figures for a paper, and a report in one HTML file."""

from anchorscope.run_folder.view import RunView
from anchorscope.show.canvas import save_figure
from anchorscope.show.delta_p import plot_delta_p
from anchorscope.show.figures import plot_controls, plot_probes, write_figures
from anchorscope.show.report.page import write_report

__all__ = [
    "RunView",
    "plot_controls",
    "plot_delta_p",
    "plot_probes",
    "save_figure",
    "write_figures",
    "write_report",
]
