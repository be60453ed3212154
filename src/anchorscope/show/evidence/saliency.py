"""Saliency, shown: densities over samples."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pandas as pd

from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.curves import Series
from anchorscope.show.evidence.piece import Piece, View
from anchorscope.show.evidence.shown import shown_as_curves
from anchorscope.show.report.markup import Safe, table
from anchorscope.show.report.words import number

CLASSES = {"right": ("Right answers", "#4c9f70"), "wrong": ("Wrong answers", "#cf5c5c")}
SOURCES = {"exact": "exact tokens", "question": "whole question"}
LOSSES = {"probe": "probe’s loss", "lm": "model’s own loss"}
FEWEST = 5  # samples below which a density is not drawn
_POINTS = 200


def piece(run: RunView) -> Piece:
    """Density of summed log saliency, right and wrong apart, the dip test's p in each panel."""
    table = run.evidence["saliency"]
    summed = cast(pd.DataFrame, table.loc[values(table, "layer").isna()])
    pairs = list(dict.fromkeys(zip(summed["loss"], summed["source"], strict=True)))
    views = [
        View(row=f"{LOSSES.get(loss, loss)}, {SOURCES.get(source, source)}", column=title,
             y="Density", series=_densities(run, name, loss, source),
             note=_note(where(summed, dataset=name, loss=loss, source=source)))
        for loss, source in pairs
        for name, title in run.titles.items()
    ]  # fmt: skip
    caption = (
        "Saliency from the question to the answer, summed over layers, one value a sample. "
        "p: Hartigan’s dip test; a small p speaks for two humps."
    )
    return Piece(name="saliency", views=views, caption=caption, unit="share", zero_line=False,
                 x="log10 of the summed saliency")  # fmt: skip


def summed_logs(run: RunView, dataset: str, loss: str, source: str) -> pd.DataFrame:
    """One row per sample: verdict and log10 of its saliency summed over layers."""
    rows = where(run.saliency, dataset=dataset, loss=loss, source=source)
    total = rows.groupby("id", as_index=False).agg(total=("saliency", "sum"))
    joined = total.merge(run.samples[["id", "verdict"]], on="id", validate="one_to_one")
    joined = cast(pd.DataFrame, joined.loc[joined["total"] > 0])
    return joined.assign(log=np.log10(joined["total"].to_numpy(dtype=float)))


def _densities(run: RunView, dataset: str, loss: str, source: str) -> list[Series]:
    from scipy.stats import gaussian_kde  # slow to import, and few runs have saliency

    rows = summed_logs(run, dataset, loss, source)
    logs = rows["log"].to_numpy(dtype=float)
    if len(logs) < FEWEST or not np.ptp(logs) > 0:
        return []
    air = 0.1 * np.ptp(logs)
    x = np.linspace(logs.min() - air, logs.max() + air, _POINTS)
    densities = []
    for verdict, (label, color) in CLASSES.items():
        mine = logs[np.asarray(rows["verdict"] == verdict)]
        if len(mine) >= FEWEST and np.ptp(mine) > 0:
            none, n = np.full(_POINTS, np.nan), np.full(_POINTS, len(mine))
            densities.append(Series(label=label, color=color, dashed=False, layer=x,
                                value=gaussian_kde(mine)(x), low=none, high=none,
                                n=n))  # fmt: skip
    return densities


def _note(rows: pd.DataFrame) -> str:
    """The dip test's p of all, right and wrong."""
    p = {str(row["subset"]): float(row["dip_p"]) for row in records(rows)}
    known = [f"{name} {value:.2g}" for name, value in p.items() if np.isfinite(value)]
    return f"dip p: {', '.join(known)}" if known else "too few for a dip test"


def words(run: RunView, dataset: str) -> list[str]:
    """One hump or two in the summed saliency."""
    table = where(run.evidence["saliency"], dataset=dataset)
    summed = cast(pd.DataFrame, table.loc[values(table, "layer").isna()])
    said = []
    for row in records(where(summed, subset="all")):
        p, bic = float(row["dip_p"]), float(row["bic"])
        what = f"With the {row['loss']} loss, from the {row['source']} tokens,"
        if not math.isfinite(p):
            said.append(f"{what} there are too few samples to judge the shape.")
            continue
        humps = "two humps are shown" if p <= 0.05 and bic > 0 else "two humps are not shown"
        said.append(
            f"{what} {humps} in {int(row['n'])} samples (dip test p {number(p, 3)}; BIC of one "
            f"component less that of two {number(bic)})."
        )
    return said


def _numbers(run: RunView) -> Safe:
    salient = run.evidence["saliency"]
    rows = [
        [run.titles.get(str(row["dataset"]), str(row["dataset"])),
         f"{row['loss']} loss, {row['source']} tokens", str(row["subset"]),
         number(float(row["mean"]), 2), number(float(row["dip_p"]), 3),
         number(float(row["bic"])), int(row["n"])]
        for row in records(salient.loc[values(salient, "layer").isna()])
    ]  # fmt: skip
    head = ["Dataset", "Saliency", "Answers", "Mean log10", "Dip p", "BIC", "n"]
    return table(head, rows, text_columns=3)


SHOWN = shown_as_curves(
    piece,
    name="saliency",
    title="Saliency from question to answer",
    words=words,
    numbers=_numbers,
    claims=("saliency-two-humps",),
)
