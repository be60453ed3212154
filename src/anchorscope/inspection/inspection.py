"""One question's record, as a notebook shows it and as a figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anchorscope.inspection.drawing import draw
from anchorscope.inspection.panel import notebook_html
from anchorscope.inspection.record import Inspected

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Inspection(Inspected):
    """One question, its answer, and what the run's probes read in it."""

    def figure(self) -> Figure:
        """The belief by layer over the run's bands, as a matplotlib figure."""
        return draw(self)

    def _repr_html_(self) -> str:
        return notebook_html(self)
