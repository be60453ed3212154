"""Self-awareness, shown."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.evidence.piece import Piece, View, interval_curve
from anchorscope.show.evidence.shown import (
    SUBSETS,
    chosen_layer,
    claim_of,
    first_value,
    shown_as_curves,
    table_at_layer,
    verdict,
)
from anchorscope.show.report.words import number

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


def piece(run: RunView) -> Piece:
    """AUROC of predictors of the pathway, a view per dataset and reading."""
    views = []
    for mode, subset, row in READINGS:
        for name, title in run.titles.items():
            rows = where(run.evidence["awareness"], dataset=name, mode=mode, subset=subset)
            series = [
                interval_curve(where(rows, predictor=predictor), ("auroc", "low", "high"),
                               label=label, color=color, dashed=dashed)
                for predictor, (label, color, dashed) in PREDICTORS.items()
                if predictor in set(values(rows, "predictor"))
            ]  # fmt: skip
            views.append(View(row=row, column=title, y="AUROC (Q against A)", series=series))
    caption = (
        "How well the pathway can be told without a knockout, on folds not trained on. Only what "
        "lies above the dashed lines is more than the probe’s own logit. Dotted: chance."
    )
    return Piece(
        name="awareness", views=views, caption=caption, unit="share", zero=0.5, controls_bare=True
    )


def words(run: RunView, dataset: str) -> list[str]:
    """How well the state knows its pathway, from which layer on, and beyond what."""
    layer = chosen_layer(run, dataset)
    table = where(run.evidence["awareness"], dataset=dataset)
    paper = where(table, mode="paper", subset="all")
    state = where(paper, predictor="state").sort_values("layer")
    at = first_value(where(state, layer=layer), "auroc")
    logit = first_value(where(paper, layer=layer, predictor="signed-logit"), "auroc")
    said = [
        f"At layer {layer}, a classifier of the clean state tells Q from A with AUROC "
        f"{number(at, 2)}; the signed logit alone reaches {number(logit, 2)} (paper mode)."
    ]
    settled = settled_layer(values(state, "auroc").to_numpy(dtype=float))
    if settled is not None and (values(state, "low") > 0.5).any():
        said.append(f"It is near its best from layer {settled} on (within 0.02 of its best).")
    said.append(verdict(claim_of(run, "state-knows-pathway", dataset), "AUROC"))
    return said


def _rows(at: pd.DataFrame) -> list[list[object]]:
    return [
        [PREDICTORS[str(row["predictor"])][0],
         f"{row['mode']}, {SUBSETS[str(row['subset'])]}", number(float(row["auroc"]), 2),
         f"{number(float(row['low']), 2)} to {number(float(row['high']), 2)}", int(row["n"])]
        for row in records(at)
    ]  # fmt: skip


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


SHOWN = shown_as_curves(
    piece,
    name="awareness",
    title="Self-awareness: does the state know its pathway?",
    words=words,
    numbers=table_at_layer(
        "awareness", ["Predictor", "Samples", "AUROC", "95 % interval", "n"], _rows
    ),
    claims=("state-knows-pathway",),
)
