"""The knowledge boundary, shown."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from anchorscope.records import MODES, Estimate
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.evidence.piece import Piece, View, pathway_curves
from anchorscope.show.evidence.shown import (
    SUBSETS,
    chosen_layer,
    claim_of,
    first_value,
    shown_as_curves,
    table_at_layer,
    verdict,
)
from anchorscope.show.report.words import interval, number, percent

MEASURES: Mapping[str, tuple[str, str, float]] = {  # name -> title, y axis, factor
    "accuracy": ("Accuracy", "Answered right (%)", 100),
    "abstention": ("Abstention", "Abstained (%)", 100),
    "popularity": ("Popularity", "Popularity (powers of ten)", 1),
}


def piece(run: RunView) -> Piece:
    """Accuracy, abstention and popularity of Q and A, a view per measure and mode."""
    table = where(run.evidence["boundary"], subset="all")
    measures = set(values(table, "measure"))
    views = []
    for mode in MODES:
        for name, (title, y, factor) in MEASURES.items():
            if name in measures:
                rows = where(table, mode=mode, measure=name)
                series = pathway_curves(run, rows, ("value", "low", "high"), factor=factor)
                views.append(View(row=f"{mode} mode", column=title, y=y, series=series))
    caption = (
        "What each pathway knows, over all answers. Whether it still differs within a predicted "
        "class stands in the report’s table."
    )
    return Piece(name="boundary", views=views, caption=caption, share_y=False, zero_line=False)


def words(run: RunView, dataset: str) -> list[str]:
    """What Q knows more than A, and whether the pathway adds to simpler things."""
    layer = chosen_layer(run, dataset)
    rows = where(run.evidence["boundary"], dataset=dataset, layer=layer, mode="paper", subset="all")
    parts = []
    for name, verb in (("accuracy", "answered right"), ("abstention", "abstained from")):
        part = where(rows, measure=name)
        if len(part):
            q, a = (percent(first_value(where(part, pathway=p), "value")) for p in ("Q", "A"))
            parts.append(f"{q} of Q are {verb}, and {a} of A")
    said = [f"At layer {layer}, in paper mode, {'; '.join(parts)}."] if parts else []
    said.append(verdict(claim_of(run, "q-knows", dataset)))
    model = run.evidence.get("boundary_model")
    if model is not None:
        said.append(_model(where(model, dataset=dataset, layer=layer, mode="strict",
                                 term="pathway")))  # fmt: skip
    return said


def _model(rows: pd.DataFrame) -> str:
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


def _rows(at: pd.DataFrame) -> list[list[object]]:
    """Strict mode's rows, overall and within each predicted class."""
    cells = []
    strict = where(at, mode="strict")
    for name, subset in dict.fromkeys(zip(strict["measure"], strict["subset"], strict=True)):
        rows = {str(r["pathway"]): r for r in records(where(strict, measure=name, subset=subset))}
        show = percent if name != "popularity" else (lambda v: number(v, 2))
        gap = rows["Q-A"]
        ends = f"{number(float(gap['value']), 2)} ({number(float(gap['low']), 2)} to "
        ends += f"{number(float(gap['high']), 2)})"
        values_ = [show(float(rows[which]["value"])) for which in ("Q", "A")]
        p = number(float(gap["p"]), 3)
        cells.append([MEASURES[name][0], SUBSETS[subset], *values_, ends, p])
    return cells


SHOWN = shown_as_curves(
    piece,
    name="boundary",
    title="Knowledge boundary: what each pathway knows",
    words=words,
    numbers=table_at_layer("boundary", ["Measure", "Samples", "Q", "A", "Q less A", "p"], _rows),
    claims=("q-knows", "q-popular", "q-abstains-less"),
)
