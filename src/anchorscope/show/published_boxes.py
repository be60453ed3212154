"""What the published figure is said to show, drawn faintly behind the curves of the same model.

Five descriptions of the figure contradict one another (`pathways/claims/readings.csv`). Each range
they give is a box of its layers and points; the box is dotted where the description does not fit
the paper's own text.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from anchorscope.claims.published import reference_bands
from anchorscope.show.curves import color_of

WITHOUT_POINTS = ("shape", "trough-layers")  # parts of a reading that name no range of ΔP
NEUTRAL = "#6b5b95"  # ranges said of all datasets
THIN = 2.0  # points: a single value read off a picture is drawn this wide
LABEL = "Descriptions of the published figure"


def draw_readings(ax: Axes, model: str, titles: Mapping[str, str], layers: int) -> bool:
    """Whether a description of this model's figure speaks of these datasets, and was drawn."""
    named = {"all": NEUTRAL}
    for position, (name, title) in enumerate(titles.items()):
        named |= {name: color_of(position), title: color_of(position)}
    rows = reference_bands(model).to_dict("records")
    shown = [r for r in rows if r["part"] not in WITHOUT_POINTS and r["dataset"] in named]
    for row in shown:
        _box(ax, row, named[row["dataset"]], layers)
    return bool(shown)


def _box(ax: Axes, row: Mapping, color: str, layers: int) -> None:
    first, last = (min(max(row[f"layer_{end}"], 1), layers) for end in ("low", "high"))
    low, high = (row["low"], row["high"])
    if low == high:
        low, high = low - THIN / 2, high + THIN / 2
    fits = bool(row["fits_text"])
    ax.add_patch(
        Rectangle(
            (first - 0.4, low),
            last - first + 0.8,
            high - low,
            facecolor=(color, 0.10),
            edgecolor=(color, 0.5),
            linewidth=0.6,
            linestyle="-" if fits else ":",
            zorder=0.6,
            label="_reading",
        )
    )
    ax.text(
        first - 0.3, high, f"{row['pathway']} {row['reading']}", fontsize=3.8, color=color,
        alpha=0.8, va="top", zorder=0.7, clip_on=True,
    )  # fmt: skip


def readings_handle() -> Patch:
    return Patch(facecolor=(NEUTRAL, 0.10), edgecolor=(NEUTRAL, 0.5), linewidth=0.6, label=LABEL)
