"""Heads, shown: a map of blocks and heads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from anchorscope.records import Estimate
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.charts import layout_of
from anchorscope.show.evidence.shown import Shown
from anchorscope.show.report.markup import Safe, table
from anchorscope.show.report.words import interval, number, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def head_map(run: RunView, dataset: str) -> np.ndarray:
    """Mean ΔP of each single head, [block, head]; NaN where a head was not tried.

    A head that is read at several layers shows their mean.
    """
    tried = single_heads(run.evidence["heads"])
    if tried.empty:
        return np.full((1, 1), np.nan)
    # As large for every dataset, so that maps can be laid side by side.
    out = np.full((int(values(tried, "block").max()), int(values(tried, "head").max()) + 1), np.nan)
    mine = where(tried, dataset=dataset)
    means = mine.groupby(["block", "head"], as_index=False).agg(effect=("delta_p", "mean"))
    for row in records(cast(pd.DataFrame, means)):
        out[int(row["block"]) - 1, int(row["head"])] = float(row["effect"])
    return out


def single_heads(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of heads.csv that cut one head alone."""
    return cast(
        pd.DataFrame, table.loc[(values(table, "head") >= 0) & (values(table, "set") == "")]
    )


def words(run: RunView, dataset: str) -> list[str]:
    """The strongest single head, what the heads of a block do together, and other datasets."""
    table = where(run.evidence["heads"], dataset=dataset)
    known = [row for row in records(single_heads(table)) if math.isfinite(float(row["delta_p"]))]
    if not known:
        return ["No single head was tried."]
    top = min(known, key=lambda row: float(row["delta_p"]))
    ends = Estimate(*(float(top[n]) for n in ("delta_p", "low", "high")), n=int(top["n"]))
    said = [
        f"Of {len(known)} single heads, head {int(top['head'])} of block {int(top['block'])} "
        f"lowers the probe’s belief most: ΔP {number(ends.value, 2)} ({interval(ends, 2)}); as "
        "the lowest of many, its size is overestimated."
    ]
    for row in records(run.evidence.get("heads_agreement", pd.DataFrame())):
        if dataset == row["dataset_a"]:
            ends = Estimate(*(float(row[n]) for n in ("spearman", "low", "high")), n=int(row["n"]))
            other = run.titles.get(str(row["dataset_b"]), str(row["dataset_b"]))
            said.append(
                f"The order of heads agrees with {other} to a rank correlation of "
                f"{number(ends.value, 2)} ({interval(ends, 2)})."
            )
    return said


def _numbers(run: RunView) -> Safe:
    """The ten lowest heads and sets of each dataset."""
    rows = []
    for dataset, title in run.titles.items():
        at = where(run.evidence["heads"], dataset=dataset).sort_values("delta_p").head(10)
        for row in records(at):
            head = f"head {int(row['head'])}" if int(row["head"]) >= 0 else "all heads"
            name = (
                str(row["set"]) if not int(row["block"]) else f"block {int(row['block'])}, {head}"
            )
            cells = [number(float(row["delta_p"]), 2),
                     f"{number(float(row['low']), 2)} to {number(float(row['high']), 2)}",
                     percent(float(row["flip_rate"])), int(row["n"])]  # fmt: skip
            rows.append([title, name, int(row["layer"]), *cells])
    columns = ["Dataset", "Cut", "Read at layer", "ΔP", "95 % interval", "Flips", "n"]
    return table(columns, rows, text_columns=2)


def heads_chart(run: RunView) -> dict[str, Any]:
    """A map of blocks and heads, a view per dataset, one scale of colours for all."""
    maps = {name: head_map(run, name) for name in run.titles}
    known = np.concatenate([m[np.isfinite(m)] for m in maps.values()])
    reach = float(np.abs(known).max()) if len(known) else 1.0
    views = [
        {"label": run.titles[name], "key": name, "data": [_map(values, reach or 1.0)]}
        for name, values in maps.items()
    ]
    layout = layout_of("Block", [0.5, max(len(m) for m in maps.values()) + 0.5], zero=0.0)
    layout |= {"shapes": [], "hovermode": "closest"}
    blocks, heads = next(iter(maps.values())).shape
    layout["yaxis"]["dtick"] = max(1, blocks // 8)
    layout["xaxis"] = {"title": {"text": "Head"}, "zeroline": False, "showgrid": False,
                       "dtick": max(1, heads // 8)}  # fmt: skip
    return {"views": views, "layout": layout}


def _map(values: np.ndarray, reach: float) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "x": list(range(values.shape[1])),
        "y": list(range(1, values.shape[0] + 1)),
        "z": values.tolist(),
        "zmin": -reach,
        "zmax": reach,
        "colorscale": [[0, "#b2182b"], [0.5, "#f7f7f7"], [1, "#2166ac"]],
        "colorbar": {"title": {"text": "ΔP"}, "thickness": 12},
        "hovertemplate": "block %{y}, head %{x}: ΔP %{z:.2f}<extra></extra>",
    }


def plot_heads(run: RunView) -> Figure:
    """A map of blocks and heads per dataset: mean ΔP when one head alone is cut."""
    from matplotlib.ticker import MaxNLocator  # needs matplotlib: not for the page

    from anchorscope.show import canvas

    maps = {title: head_map(run, name) for name, title in run.titles.items()}
    reach = max((float(np.nanmax(np.abs(m))) for m in maps.values() if np.isfinite(m).any()),
                default=1.0) or 1.0  # fmt: skip
    figure, axes = canvas.panels(1, len(maps), share_y=True)
    drawn = None
    for ax, (title, effects) in zip(axes[0], maps.items(), strict=True):
        ax.set_facecolor("#eeeeee")
        drawn = ax.imshow(
            effects, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto", origin="lower",
            extent=(-0.5, effects.shape[1] - 0.5, 0.5, effects.shape[0] + 0.5),
        )  # fmt: skip
        ax.grid(visible=False)
        ax.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        canvas.title(ax, title)
        ax.set_xlabel("Head", fontsize=canvas.TEXT, color=canvas.INK)
    axes[0, 0].set_ylabel("Block", fontsize=canvas.TEXT, color=canvas.INK)
    if drawn is not None:
        bar = figure.colorbar(drawn, ax=list(axes[0]), fraction=0.04, pad=0.02)
        bar.set_label("ΔP", fontsize=canvas.TEXT)
        bar.ax.tick_params(labelsize=canvas.SMALL)
    note = "Mean ΔP when a single head is kept from the exact question tokens; grey: not tried."
    canvas.footer(figure, [], columns=1, caption=f"{run.model_name}. {note}")
    return figure


SHOWN = Shown(
    name="heads",
    title="Heads that carry the flow",
    words=words,
    numbers=_numbers,
    draw=plot_heads,
    claims=("heads-carry",),
    chart=lambda run: (
        heads_chart(run),
        "Mean ΔP when one head alone is kept from the exact question tokens.",
    ),
)
