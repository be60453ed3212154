"""Answer-only and question-only, shown."""

from __future__ import annotations

from typing import cast

import numpy as np
import pandas as pd

from anchorscope.records import MODES
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.evidence.piece import Piece, View, pathway_curves
from anchorscope.show.evidence.shown import (
    SUBSETS,
    chosen_layer,
    claim_of,
    first_value,
    shown_as_curves,
    side_by_side,
    table_at_layer,
    verdict,
)
from anchorscope.show.report.words import number


def piece(run: RunView) -> Piece:
    """ΔP without the question, a view per mode."""
    table = where(run.evidence["answer_only"], subset="all")
    columns = ("delta_p", "delta_p_low", "delta_p_high")
    views = [
        View(row="", column=f"{mode.capitalize()} mode", y="ΔP",
             series=pathway_curves(run, where(table, mode=mode), columns))
        for mode in MODES
    ]  # fmt: skip
    caption = "The answer is read again in a pass without the question. Groups are the knockout’s."
    return Piece(name="answer_only", views=views, caption=caption)


def words(run: RunView, dataset: str) -> list[str]:
    """ΔP without the question, and what the question alone foretells."""
    layer = chosen_layer(run, dataset)
    rows = where(run.evidence["answer_only"], dataset=dataset, layer=layer, subset="all")
    q, a = (first_value(where(rows, mode="paper", pathway=p), "delta_p") for p in ("Q", "A"))
    said = [
        f"At layer {layer}, an answer read without its question changes the probability of the "
        f"probe’s first prediction by {number(q)} {run.unit} for Q and {number(a)} for A "
        "(paper mode).",
        verdict(claim_of(run, "answer-only-moves-q", dataset)),
    ]
    probe = where(run.evidence.get("question_probe", pd.DataFrame({"dataset": []})),
                  dataset=dataset)  # fmt: skip
    if len(probe) and values(probe, "auroc").notna().any():
        best = max(records(probe), key=lambda row: np.nan_to_num(row["auroc"], nan=-1.0))
        said.append(
            "A probe that sees only the question, before any answer, reaches AUROC "
            f"{number(float(best['auroc']), 2)} at its best layer ({int(best['layer'])}): what "
            "it reaches needs no answer at all."
        )
    return said


def _rows(at: pd.DataFrame) -> list[list[object]]:
    rows = cast(pd.DataFrame, at.loc[values(at, "subset").isin(list(SUBSETS))])
    return side_by_side(rows, ("mode", "subset"), "delta_p", number)


SHOWN = shown_as_curves(
    piece,
    name="answer_only",
    title="The answer without the question, the question without the answer",
    words=words,
    numbers=table_at_layer(
        "answer_only", ["Mode", "Samples", "ΔP of Q", "ΔP of A", "n of Q", "n of A"], _rows
    ),
    claims=("answer-only-moves-q",),
)
