"""The belief by layer of one question, as a matplotlib figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anchorscope.inspection.lines import bands_of, lines_of
from anchorscope.inspection.record import Inspected

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DASHES = {"": "solid", "2 3": (0, (1, 1.5)), "7 3": (0, (4, 2))}


def draw(of: Inspected) -> Figure:
    """P(wrong) by layer, clean and under every pass, over the run's bands of Q and A."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    layers = range(1, 1 + max((len(line.values) for line in lines_of(of)), default=1))
    for band in bands_of(of):
        axes.fill_between(
            layers, band.low, band.high, color=band.color, alpha=0.17, label=band.label
        )
    for line in lines_of(of):
        color = "black" if line.color == "currentColor" else line.color
        dash = _DASHES.get(line.dash, "dashdot")
        axes.plot(layers, line.values, color=color, linestyle=dash, label=_plain(line.label))
    axes.axvline(of.layer, color="0.5", linewidth=0.8, linestyle="dotted")
    axes.axhline(0.5, color="0.7", linewidth=0.8)
    axes.set(ylim=(0, 1), xlabel="layer", ylabel="P(wrong)")
    axes.set_title(_plain(f"{of.question} {of.answer}"), fontsize="medium", wrap=True)
    axes.legend(fontsize="small", frameon=False)
    return figure


def _plain(text: str) -> str:
    """The text without meaning to matplotlib, which reads $ as mathematics and _ as hidden."""
    return text.replace("$", r"\$").lstrip("_")
