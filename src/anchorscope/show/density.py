"""Saliency as densities over samples, and heads as a map."""

from __future__ import annotations

from typing import cast

import numpy as np
import pandas as pd
from scipy.stats import gaussian_kde

from anchorscope.show.evidence_views import Piece, View
from anchorscope.show.load import RunView, records, values, where
from anchorscope.show.style import Series

CLASSES = {"right": ("Right answers", "#4c9f70"), "wrong": ("Wrong answers", "#cf5c5c")}
SOURCES = {"exact": "exact tokens", "question": "whole question"}
LOSSES = {"probe": "probe’s loss", "lm": "model’s own loss"}
FEWEST = 5  # samples below which a density is not drawn
_POINTS = 200


def saliency(run: RunView) -> Piece:
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
    return Piece(name="saliency", views=views, caption=caption, unit="share",
                 x="log10 of the summed saliency")  # fmt: skip


def summed_logs(run: RunView, dataset: str, loss: str, source: str) -> pd.DataFrame:
    """One row per sample: verdict and log10 of its saliency summed over layers."""
    rows = where(run.saliency, dataset=dataset, loss=loss, source=source)
    total = rows.groupby("id", as_index=False).agg(total=("saliency", "sum"))
    joined = total.merge(run.samples[["id", "verdict"]], on="id", validate="one_to_one")
    joined = cast(pd.DataFrame, joined.loc[joined["total"] > 0])
    return joined.assign(log=np.log10(joined["total"].to_numpy(dtype=float)))


def _densities(run: RunView, dataset: str, loss: str, source: str) -> list[Series]:
    rows = summed_logs(run, dataset, loss, source)
    logs = rows["log"].to_numpy(dtype=float)
    if len(logs) < FEWEST or not np.ptp(logs) > 0:
        return []
    air = 0.1 * np.ptp(logs)
    x = np.linspace(logs.min() - air, logs.max() + air, _POINTS)
    found = []
    for verdict, (label, color) in CLASSES.items():
        mine = logs[np.asarray(rows["verdict"] == verdict)]
        if len(mine) >= FEWEST and np.ptp(mine) > 0:
            none, n = np.full(_POINTS, np.nan), np.full(_POINTS, len(mine))
            found.append(Series(label=label, color=color, dashed=False, layer=x,
                                value=gaussian_kde(mine)(x), low=none, high=none,
                                n=n))  # fmt: skip
    return found


def _note(rows: pd.DataFrame) -> str:
    """The dip test's p of all, right and wrong."""
    p = {str(row["subset"]): float(row["dip_p"]) for row in records(rows)}
    known = [f"{name} {value:.2g}" for name, value in p.items() if np.isfinite(value)]
    return f"dip p: {', '.join(known)}" if known else "too few for a dip test"


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
