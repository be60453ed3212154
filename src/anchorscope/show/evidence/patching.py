"""Token patching, shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pandas as pd

from anchorscope.records import MODES
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.curves import CONTROL
from anchorscope.show.evidence.piece import Piece, View, interval_curve, pathway_curves
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
from anchorscope.show.report.words import percent

FLOOR = "#8c564b"
PATCHES: Mapping[str, str] = {
    "patch-matched": "tokens of a matched subject",
    "patch-random": "tokens of a random subject",
    "patch-other": "other tokens of the question",
    "patch-self": "its own tokens",
}
OTHER = "Other tokens, all samples (control)"
OWN = "Its own tokens, all samples (rounding alone)"


def main_patch(table: pd.DataFrame) -> str:
    """The patch that is drawn: with a matched donor, where there is one."""
    return next(name for name in PATCHES if name in set(values(table, "intervention")))


def piece(run: RunView) -> Piece:
    """Flip rate by layer, a view per mode."""
    table = run.evidence["patching"]
    patch, views = main_patch(table), []
    columns = ("flip_rate", "flip_low", "flip_high")
    for mode in MODES:
        rows = where(table, mode=mode, subset="all")
        series = pathway_curves(run, where(rows, intervention=patch), columns, factor=100)
        for control, label, color in (("patch-other", OTHER, CONTROL), ("patch-self", OWN, FLOOR)):
            of = where(rows, intervention=control, pathway="all")
            for part in (where(of, dataset=name) for name in run.titles):
                if len(part):
                    how = {"label": label, "color": color, "factor": 100}
                    series.append(interval_curve(part, columns, **how))
        view = View(row="", column=f"{mode.capitalize()} mode",
                    y="Predictions that flip (%)", series=series)  # fmt: skip
        views.append(view)
    caption = (
        f"The exact question tokens are replaced by the {PATCHES[patch]}. Groups are those of the "
        "knockout. Grey: as many other tokens of the question replaced, all samples. Brown: the "
        "noise floor, what flips where a sample’s own tokens are put in and rounding alone differs."
    )
    return Piece(name="patching", views=views, caption=caption, unit="percent")


def words(run: RunView, dataset: str) -> list[str]:
    """Flips under a patch, by pathway, beside its control."""
    table, layer = run.evidence["patching"], chosen_layer(run, dataset)
    rows = where(table, dataset=dataset, layer=layer, mode="paper", subset="all")
    patch = main_patch(table)
    q, a = (_share(rows, intervention=patch, pathway=p) for p in ("Q", "A"))
    said = [
        f"At layer {layer}, replacing the exact question tokens by the {PATCHES[patch]} flips the "
        f"probe’s prediction on {q} of the Q samples and {a} of the A samples (paper mode)."
    ]
    if "patch-other" in set(values(rows, "intervention")):
        said.append(
            "Replacing as many other tokens of the question flips "
            f"{_share(rows, intervention='patch-other', pathway='all')} of all."
        )
    if "patch-self" in set(values(rows, "intervention")):
        said.append(
            "With its own tokens put in, "
            f"{_share(rows, intervention='patch-self', pathway='all')} of all flip: that is "
            "rounding, the noise floor of these numbers."
        )
    return [*said, verdict(claim_of(run, "patching-flips-q", dataset)), *_donors(run, dataset)]


def _rows(at: pd.DataFrame) -> list[list[object]]:
    """Strict mode's flips of Q and A under each patch."""
    strict = where(at, mode="strict")
    rows = cast(pd.DataFrame, strict.loc[values(strict, "subset").isin(list(SUBSETS))])
    return side_by_side(rows, ("intervention", "subset"), "flip_rate", percent, PATCHES)


def _donors(run: RunView, dataset: str) -> list[str]:
    """How many matched donors made the prompt longer or shorter, and share the relation."""
    ids = set(values(where(run.samples, dataset=dataset), "id"))
    own = [row for row in records(where(run.donors, kind="matched")) if row["id"] in ids]
    if not own:
        return []
    longer, alike = (sum(bool(row[name]) for row in own) for name in ("resized", "same_relation"))
    said = [
        f"Of {len(own)} matched donors {alike} share the relation, and {longer} have another "
        "number of tokens."
    ]
    parts = [row for row in own if row.get("donor") and not row.get("whole", True)]
    if parts:
        said.append(
            f"{len(parts)} have another number of spans than their sample: only its longest was "
            "replaced."
        )
    return said


def _share(rows: pd.DataFrame, **equal: object) -> str:
    return percent(first_value(where(rows, **equal), "flip_rate"))


SHOWN = shown_as_curves(
    piece,
    name="patching",
    title="Another subject in the question (token patching)",
    words=words,
    numbers=table_at_layer(
        "patching", ["Replaced by", "Samples", "Q flips", "A flips", "n of Q", "n of A"], _rows
    ),
    claims=("patching-flips-q",),
)
