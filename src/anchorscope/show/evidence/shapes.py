"""Where the flow runs, shown: saliency as densities over samples, heads as a map."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pandas as pd

from anchorscope.records import Estimate
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.charts import Chart, HeadMaps, View
from anchorscope.show.curves import Series
from anchorscope.show.evidence.shown import Shown
from anchorscope.show.report.words import interval, number

CLASSES = {"right": ("Right answers", "#4c9f70"), "wrong": ("Wrong answers", "#cf5c5c")}
SOURCES = {"exact": "exact tokens", "question": "whole question"}
LOSSES = {"probe": "probe’s loss", "lm": "model’s own loss"}
FEWEST = 5  # samples below which a density is not drawn
_POINTS = 200


def saliency_chart(run: RunView) -> Chart:
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
    x = "log10 of the summed saliency"
    return Chart(views=views, caption=caption, unit="share", zero_line=False, x=x)


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
    shown = [f"{name} {value:.2g}" for name, value in p.items() if np.isfinite(value)]
    return f"dip p: {', '.join(shown)}" if shown else "too few for a dip test"


def _saliency_words(run: RunView, dataset: str) -> list[str]:
    """One hump or two in the summed saliency."""
    table = where(run.evidence["saliency"], dataset=dataset)
    summed = cast(pd.DataFrame, table.loc[values(table, "layer").isna()])
    sentences = []
    for row in records(where(summed, subset="all")):
        p, bic = float(row["dip_p"]), float(row["bic"])
        what = f"With the {row['loss']} loss, from the {row['source']} tokens,"
        if not math.isfinite(p):
            sentences.append(f"{what} there are too few samples to judge the shape.")
            continue
        humps = "two humps are shown" if p <= 0.05 and bic > 0 else "two humps are not shown"
        sentences.append(
            f"{what} {humps} in {int(row['n'])} samples (dip test p {number(p, 3)}; BIC of one "
            f"component less that of two {number(bic)})."
        )
    return sentences


SALIENCY = Shown(
    name="saliency",
    title="Saliency from question to answer",
    chart=saliency_chart,
    words=_saliency_words,
    claims=("saliency-two-humps",),
)


def head_map(run: RunView, dataset: str) -> np.ndarray:
    """Mean ΔP of each single head, [block, head]; NaN where a head was not tried.

    A head that is read at several layers shows their mean.
    """
    tried = _single_heads(run.evidence["heads"])
    if tried.empty:
        return np.full((1, 1), np.nan)
    # As large for every dataset, so that maps can be laid side by side.
    out = np.full((int(values(tried, "block").max()), int(values(tried, "head").max()) + 1), np.nan)
    mine = where(tried, dataset=dataset)
    means = mine.groupby(["block", "head"], as_index=False).agg(effect=("delta_p", "mean"))
    for row in records(cast(pd.DataFrame, means)):
        out[int(row["block"]) - 1, int(row["head"])] = float(row["effect"])
    return out


def _single_heads(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of heads.csv that cut one head alone."""
    return cast(
        pd.DataFrame, table.loc[(values(table, "head") >= 0) & (values(table, "set") == "")]
    )


def _heads_words(run: RunView, dataset: str) -> list[str]:
    """The strongest single head, what the heads of a block do together, and other datasets."""
    table = where(run.evidence["heads"], dataset=dataset)
    tried = [row for row in records(_single_heads(table)) if math.isfinite(float(row["delta_p"]))]
    if not tried:
        return ["No single head was tried."]
    top = min(tried, key=lambda row: float(row["delta_p"]))
    ends = Estimate(*(float(top[n]) for n in ("delta_p", "low", "high")), n=int(top["n"]))
    sentences = [
        f"Of {len(tried)} single heads, head {int(top['head'])} of block {int(top['block'])} "
        f"lowers the probe’s belief most: ΔP {number(ends.value, 2)} ({interval(ends, 2)}); as "
        "the lowest of many, its size is overestimated."
    ]
    for row in records(run.evidence.get("heads_agreement", pd.DataFrame())):
        if dataset == row["dataset_a"]:
            ends = Estimate(*(float(row[n]) for n in ("spearman", "low", "high")), n=int(row["n"]))
            other = run.titles.get(str(row["dataset_b"]), str(row["dataset_b"]))
            sentences.append(
                f"The order of heads agrees with {other} to a rank correlation of "
                f"{number(ends.value, 2)} ({interval(ends, 2)})."
            )
    return sentences


def heads_chart(run: RunView) -> HeadMaps:
    """Mean ΔP of each single head, a map per dataset."""
    return HeadMaps(
        maps={title: head_map(run, name) for name, title in run.titles.items()},
        caption="Mean ΔP when one head alone is kept from the exact question tokens.",
    )


HEADS = Shown(
    name="heads",
    title="Heads that carry the flow",
    chart=heads_chart,
    words=_heads_words,
    claims=("heads-carry",),
)
