"""Charts and tables of the other evidence, by piece."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from anchorscope.records import MODES
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.charts import (
    CONTROL,
    Chart,
    Maps,
    Series,
    View,
    chart_data,
    curve,
    pathway_series,
)
from anchorscope.show.html import Table, short

MOST_ROWS = 40


def pieces_of(run: RunView) -> list[str]:
    """The pieces of evidence whose tables a run holds."""
    return [name for name in PIECES if name in run.evidence]


def evidence_parts(run: RunView) -> list[dict[str, Any]]:
    """The chart and the tables of each piece of evidence, for the report."""
    parts = []
    for name in pieces_of(run):
        title, draw = PIECES[name]
        chart, dashed = draw(run), name.replace("_", "-")
        tables = [table for table in table_columns.PIECES[dashed] if table in run.evidence]
        part = {"id": f"evidence-{dashed}", "title": title, "caption": chart.caption}
        part |= {"chart": chart_data(chart), "tables": {t: table_of(run, t) for t in tables}}
        parts.append(part)
    return parts


def table_of(run: RunView, name: str) -> Table:
    """The rows of a table at the layer where evidence is read, at most `MOST_ROWS` a dataset."""
    table = run.evidence[name]
    columns = [c for c in table.columns if c not in ("model", "dataset", "layer")]
    numbers = [c for c in columns if is_numeric_dtype(table[c])]
    words = [c for c in columns if c not in numbers]
    head, parts = [], [([], table)]
    if "dataset" in table:  # else each row is of two datasets
        head, parts = ["Dataset"], []
        for dataset, title in run.titles.items():
            rows = where(table, dataset=dataset)
            summed = rows[rows["layer"].isna()]  # over all layers
            at = rows[rows["layer"] == chosen_layer(run, dataset)]
            parts.append(([title], next((part for part in (summed, at) if len(part)), rows)))
    cells = [
        [*names, *(str(row[c]) for c in words), *(_shown(row[c]) for c in numbers)]
        for names, rows in parts
        for row in records(rows.head(MOST_ROWS))
    ]
    return Table([*head, *words, *numbers], cells, text_columns=len(head) + len(words))


def _shown(value: Any) -> str:
    if isinstance(value, int) or not math.isfinite(value):
        return str(value) if isinstance(value, int) else ""
    return f"{value:.1e}" if 0 < abs(value) < 0.001 else short(value)


def chosen_layer(run: RunView, dataset: str) -> int:
    """The layer whose clean probe is best, where all evidence is read."""
    return int(records(where(run.findings, dataset=dataset))[0]["layer"])


# --- Token patching, the answer alone, fewer blocks cut ---

PATCHES: Mapping[str, str] = {
    "patch-matched": "tokens of a matched subject",
    "patch-random": "tokens of a random subject",
    "patch-other": "other tokens of the question",
    "patch-self": "its own tokens",
}
OTHER = "Other tokens, all samples (control)"
OWN = "Its own tokens, all samples (rounding alone)"
_OWN_COLOR = "#8c564b"


def patching_chart(run: RunView) -> Chart:
    """Flip rate by layer under a patch, a view per mode."""
    table = run.evidence["patching"]
    patch = next(name for name in PATCHES if name in set(values(table, "intervention")))
    columns, views = ("flip_rate", "flip_low", "flip_high"), []
    for mode in MODES:
        rows = where(table, mode=mode, subset="all")
        drawn = where(rows, intervention=patch)
        series = pathway_series(drawn, run.titles, columns, factor=100)
        for control, label, color in (
            ("patch-other", OTHER, CONTROL),
            ("patch-self", OWN, _OWN_COLOR),
        ):
            for name in run.titles:
                part = where(rows, intervention=control, pathway="all", dataset=name)
                if len(part):
                    series.append(curve(part, columns, label=label, color=color, factor=100))
        name = f"{mode.capitalize()} mode"
        views.append(View(column=name, y="Predictions that flip (%)", series=series))
    caption = (
        f"The exact question tokens are replaced by the {PATCHES[patch]}. Groups are those of the "
        "knockout. Grey: as many other tokens of the question replaced, all samples. Brown: the "
        "noise floor, what flips where a sample’s own tokens are put in and rounding alone differs."
    )
    return Chart(views=views, caption=caption + _donors(run), unit="percent")


def _donors(run: RunView) -> str:
    """A sentence on how many matched donors share the relation, and change the prompt's length."""
    donors = records(where(run.donors, kind="matched"))
    if not donors:
        return ""
    same, resized = (sum(bool(d[name]) for d in donors) for name in ("same_relation", "resized"))
    return (
        f" Of {len(donors)} matched donors {same} share the relation, and {resized} have another "
        "number of tokens."
    )


def answer_only_chart(run: RunView) -> Chart:
    """ΔP without the question, a view per mode."""
    table = where(run.evidence["answer_only"], subset="all")
    views = [
        View(
            column=f"{mode.capitalize()} mode",
            y="ΔP",
            series=pathway_series(where(table, mode=mode), run.titles),
        )
        for mode in MODES
    ]
    caption = "The answer is read again in a pass without the question. Groups are the knockout’s."
    return Chart(views=views, caption=caption)


def windows_chart(run: RunView) -> Chart:
    """ΔP by choice of blocks, a view per choice and mode."""
    table = run.evidence["windows"]
    names = {"cumulative": "all blocks up to the layer", "single": "one block alone"}
    views = []
    for mode in MODES:
        for kind in dict.fromkeys(map(str, values(table, "layers"))):
            window = f"{kind.removeprefix('window:')} blocks up to the layer"
            rows = where(table, layers=kind, mode=mode)
            column = names.get(kind, window if kind.startswith("window:") else kind)
            series = pathway_series(rows, run.titles)
            views.append(View(row=f"{mode} mode", column=column, y="ΔP", series=series))
    caption = (
        "The knockout in other blocks. The groups are always those of the run’s own knockout, so "
        "all panels show the same samples."
    )
    return Chart(views=views, caption=caption)


# --- What each pathway knows ---

PREDICTORS: Mapping[str, tuple[str, str, bool]] = {  # name -> label, colour, dashed
    "state": ("Clean state", "#1f77b4", False),
    "question-only": ("State at the last question token", "#2ca02c", False),
    "signed-logit": ("Signed logit alone", "#d62728", True),
    "margin": ("Margin alone", "#9467bd", True),
    "simple": ("Logit, margin, popularity, length", "#7f7f7f", True),
}
READINGS = (  # mode, subset, what a reader calls it
    ("paper", "all", "Paper mode, all"),
    ("strict", "predicted-right", "Strict, predicted right"),
    ("strict", "predicted-wrong", "Strict, predicted wrong"),
)
MEASURES: Mapping[str, tuple[str, str, float]] = {  # name -> title, y axis, factor
    "accuracy": ("Accuracy", "Answered right (%)", 100),
    "abstention": ("Abstention", "Abstained (%)", 100),
    "popularity": ("Popularity", "Popularity (powers of ten)", 1),
}


def awareness_chart(run: RunView) -> Chart:
    """AUROC of predictors of the pathway, a view per dataset and reading."""
    views = []
    for mode, subset, row in READINGS:
        for name, title in run.titles.items():
            series, table = [], run.evidence["awareness"]
            rows = where(table, dataset=name, mode=mode, subset=subset)
            for predictor, (label, color, dashed) in PREDICTORS.items():
                part = where(rows, predictor=predictor)
                # Bands of the solid curves only: five overlapping bands hide the curves.
                columns = ("auroc", "", "") if dashed else ("auroc", "low", "high")
                if len(part):
                    series.append(curve(part, columns, label=label, color=color, dashed=dashed))
            views.append(View(row=row, column=title, y="AUROC (Q against A)", series=series))
    caption = (
        "How well the pathway can be told without a knockout, on folds not trained on. Only what "
        "is above the dashed lines is more than the probe’s own logit. Dotted: chance."
    )
    return Chart(views=views, caption=caption, unit="share", zero=0.5)


def boundary_chart(run: RunView) -> Chart:
    """Accuracy, abstention and popularity of Q and A, a view per measure and mode."""
    table, views = where(run.evidence["boundary"], subset="all"), []
    for mode in MODES:
        for name, (title, y, factor) in MEASURES.items():
            rows = where(table, mode=mode, measure=name)
            if len(rows):
                columns = ("value", "low", "high")
                series = pathway_series(rows, run.titles, columns, factor=factor)
                views.append(View(row=f"{mode} mode", column=title, y=y, series=series))
    caption = (
        "What each pathway knows, over all answers. Whether it still differs within a predicted "
        "class is in the report’s table."
    )
    return Chart(views=views, caption=caption, share_y=False, zero=None)


# --- Where the flow runs ---

CLASSES = {"right": ("Right answers", "#4c9f70"), "wrong": ("Wrong answers", "#cf5c5c")}
SOURCES = {"exact": "exact tokens", "question": "whole question"}
LOSSES = {"probe": "probe’s loss", "lm": "model’s own loss"}
FEWEST = 5  # samples below which a density is not drawn
_POINTS = 200


def saliency_chart(run: RunView) -> Chart:
    """Density of summed log saliency, right and wrong apart, the dip test's p in each panel."""
    table = run.evidence["saliency"]
    summed = cast(pd.DataFrame, table.loc[values(table, "layer").isna()])
    views = []
    for loss, source in dict.fromkeys(zip(summed["loss"], summed["source"], strict=True)):
        for name, title in run.titles.items():
            rows = records(where(summed, dataset=name, loss=loss, source=source))
            p = {row["subset"]: row["dip_p"] for row in rows if np.isfinite(row["dip_p"])}
            dips = ", ".join(f"{subset} {value:.2g}" for subset, value in p.items())
            view = View(
                row=f"{LOSSES.get(loss, loss)}, {SOURCES.get(source, source)}",
                column=title,
                y="Density",
                series=_densities(run, name, loss, source),
                note=f"dip p: {dips}" if dips else "too few for a dip test",
            )
            views.append(view)
    caption = (
        "Saliency from the question to the answer, summed over layers, one value a sample. "
        "p: Hartigan’s dip test; a small p speaks for two humps."
    )
    x = "log10 of the summed saliency"
    return Chart(views=views, caption=caption, unit="share", zero=None, x=x)


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
    densities, none = [], np.full(_POINTS, np.nan)
    for verdict, (label, color) in CLASSES.items():
        mine = logs[np.asarray(rows["verdict"] == verdict)]
        if len(mine) >= FEWEST and np.ptp(mine) > 0:
            value, n = gaussian_kde(mine)(x), np.full(_POINTS, len(mine))
            drawn = Series(label=label, color=color, layer=x, value=value, low=none, high=none, n=n)
            densities.append(drawn)
    return densities


def heads_chart(run: RunView) -> Maps:
    """Mean ΔP of each single head, a map [block, head] per dataset; NaN where it was not tried.

    A head that is read at several layers shows their mean.
    """
    tried = where(run.evidence["heads"], set="")
    tried = cast(pd.DataFrame, tried.loc[tried["head"] >= 0])
    # The same size for every dataset, so that maps can be compared; blocks count from 1.
    blocks = range(1, max(tried["block"].astype(int), default=0) + 1)
    heads = range(max(tried["head"].astype(int), default=0) + 1)
    maps = {
        title: where(tried, dataset=name)
        .pivot_table(index="block", columns="head", values="delta_p")
        .reindex(index=blocks, columns=heads)
        .to_numpy(float)
        for name, title in run.titles.items()
    }
    sizes = np.abs(np.concatenate([cells.ravel() for cells in maps.values()]))
    reach = float(np.nan_to_num(sizes).max()) or 1.0
    return Maps(
        maps=maps,
        ends=(-reach, reach),
        caption="Mean ΔP when one head alone is kept from the exact question tokens; where a head "
        "has no colour it was not tried. The lowest of many heads is overestimated.",
    )


# Name of the first table and the figure -> title, and the chart of a run.
PIECES: Mapping[str, tuple[str, Callable[[RunView], Chart | Maps]]] = {
    "patching": ("Another subject in the question (token patching)", patching_chart),
    "answer_only": ("The answer without the question", answer_only_chart),
    "saliency": ("Saliency from question to answer", saliency_chart),
    "boundary": ("Knowledge boundary: what each pathway knows", boundary_chart),
    "awareness": ("Self-awareness: does the state know its pathway?", awareness_chart),
    "heads": ("Heads that carry the flow", heads_chart),
    "windows": ("The knockout in fewer blocks", windows_chart),
}
