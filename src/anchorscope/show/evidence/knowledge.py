"""What each pathway knows, shown: self-awareness, and the knowledge boundary."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from anchorscope.records import MODES, Estimate
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.charts import Chart, View
from anchorscope.show.curves import curve, pathway_series
from anchorscope.show.evidence.shown import (
    Shown,
    chosen_layer,
    claim_of,
    first_value,
    verdict,
)
from anchorscope.show.report.words import interval, number, percent

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
WITHIN = 0.02  # AUROC by which a layer may fall short of the best one


def _awareness_chart(run: RunView) -> Chart:
    """AUROC of predictors of the pathway, a view per dataset and reading."""
    views = []
    for mode, subset, row in READINGS:
        for name, title in run.titles.items():
            rows = where(run.evidence["awareness"], dataset=name, mode=mode, subset=subset)
            series = [
                curve(where(rows, predictor=predictor), ("auroc", "low", "high"),
                               label=label, color=color, dashed=dashed)
                for predictor, (label, color, dashed) in PREDICTORS.items()
                if predictor in set(values(rows, "predictor"))
            ]  # fmt: skip
            views.append(View(row=row, column=title, y="AUROC (Q against A)", series=series))
    caption = (
        "How well the pathway can be told without a knockout, on folds not trained on. Only what "
        "is above the dashed lines is more than the probe’s own logit. Dotted: chance."
    )
    return Chart(views=views, caption=caption, unit="share", zero=0.5, controls_bare=True)


def _awareness_words(run: RunView, dataset: str) -> list[str]:
    """How well the state knows its pathway, from which layer on, and beyond what."""
    layer = chosen_layer(run, dataset)
    table = where(run.evidence["awareness"], dataset=dataset)
    paper = where(table, mode="paper", subset="all")
    state = where(paper, predictor="state").sort_values("layer")
    at = first_value(where(state, layer=layer), "auroc")
    logit = first_value(where(paper, layer=layer, predictor="signed-logit"), "auroc")
    sentences = [
        f"At layer {layer}, how well Q is told from A (AUROC, paper mode): by a classifier of the "
        f"clean state {number(at, 2)}, by the signed logit alone {number(logit, 2)}."
    ]
    settled = settled_layer(values(state, "auroc").to_numpy(dtype=float))
    if settled is not None and (values(state, "low") > 0.5).any():
        sentences.append(f"It is near its best from layer {settled} on (within 0.02 of its best).")
    sentences.append(verdict(claim_of(run, "state-knows-pathway", dataset), "AUROC"))
    return sentences


def settled_layer(values: np.ndarray, *, within: float = WITHIN) -> int | None:
    """The settled layer (from 1): the first from which the values [layer] stay within `within`
    of their greatest; None where no value is known. A layer without a value breaks the stretch.
    """
    values = np.asarray(values, dtype=np.float64)
    if not np.isfinite(values).any():
        return None
    near = values >= np.nanmax(values) - within  # NaN compares as False
    if not near[-1]:
        return None
    far = np.flatnonzero(~near)
    return int(far[-1]) + 2 if len(far) else 1


AWARENESS = Shown(
    name="awareness",
    title="Self-awareness: does the state know its pathway?",
    chart=_awareness_chart,
    words=_awareness_words,
    claims=("state-knows-pathway",),
)


MEASURES: Mapping[str, tuple[str, str, float]] = {  # name -> title, y axis, factor
    "accuracy": ("Accuracy", "Answered right (%)", 100),
    "abstention": ("Abstention", "Abstained (%)", 100),
    "popularity": ("Popularity", "Popularity (powers of ten)", 1),
}


def _boundary_chart(run: RunView) -> Chart:
    """Accuracy, abstention and popularity of Q and A, a view per measure and mode."""
    table = where(run.evidence["boundary"], subset="all")
    measures, ends = set(values(table, "measure")), ("value", "low", "high")
    views = []
    for mode in MODES:
        for name, (title, y, factor) in MEASURES.items():
            if name in measures:
                rows = where(table, mode=mode, measure=name)
                series = pathway_series(rows, run.titles, ends, factor=factor)
                views.append(View(row=f"{mode} mode", column=title, y=y, series=series))
    caption = (
        "What each pathway knows, over all answers. Whether it still differs within a predicted "
        "class is in the report’s table."
    )
    return Chart(views=views, caption=caption, share_y=False, zero_line=False)


def _boundary_words(run: RunView, dataset: str) -> list[str]:
    """What Q knows more than A, and whether the pathway adds to simpler things."""
    layer = chosen_layer(run, dataset)
    rows = where(run.evidence["boundary"], dataset=dataset, layer=layer, mode="paper", subset="all")
    parts = []
    for name, what in (("accuracy", "share answered right"), ("abstention", "share abstained")):
        part = where(rows, measure=name)
        if len(part):
            q, a = (percent(first_value(where(part, pathway=p), "value")) for p in ("Q", "A"))
            parts.append(f"{what}: Q {q}, A {a}")
    sentences = [f"At layer {layer}, in paper mode, {'; '.join(parts)}."] if parts else []
    sentences.append(verdict(claim_of(run, "q-knows", dataset)))
    model = run.evidence.get("boundary_model")
    if model is not None:
        sentences.append(_pathway_term(where(model, dataset=dataset, layer=layer, mode="strict",
                                 term="pathway")))  # fmt: skip
    return sentences


def _pathway_term(rows: pd.DataFrame) -> str:
    terms = records(rows)
    if not terms or not math.isfinite(float(terms[0]["coefficient"])):
        return "A model with logit, margin, popularity and length could not be fitted."
    row = terms[0]
    ends = Estimate(float(row["coefficient"]), float(row["low"]), float(row["high"]), int(row["n"]))
    adds = "nothing that can be told from 0" if ends.low <= 0 <= ends.high else "something"
    return (
        "Beside the signed logit, its size, popularity and length, the strict pathway adds "
        f"{adds} to the odds of being right (coefficient per spread {number(ends.value, 2)}, "
        f"{interval(ends, 2)})."
    )


BOUNDARY = Shown(
    name="boundary",
    title="Knowledge boundary: what each pathway knows",
    chart=_boundary_chart,
    words=_boundary_words,
    claims=("q-knows", "q-popular", "q-abstains-less"),
)
