"""The knockout in windows of blocks, shown."""

from __future__ import annotations

from anchorscope.records import MODES
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.evidence.piece import Piece, View, pathway_curves
from anchorscope.show.evidence.shown import (
    chosen_layer,
    shown_as_curves,
    side_by_side,
    table_at_layer,
)
from anchorscope.show.report.words import number


def piece(run: RunView) -> Piece:
    """ΔP by choice of blocks, a view per choice and mode."""
    table = run.evidence["windows"]
    columns = ("delta_p", "delta_p_low", "delta_p_high")
    views = [
        View(row=f"{mode} mode", column=_blocks(str(kind)), y="ΔP",
             series=pathway_curves(run, where(table, layers=kind, mode=mode), columns))
        for mode in MODES
        for kind in dict.fromkeys(values(table, "layers"))
    ]  # fmt: skip
    caption = (
        "The knockout in other blocks. The groups are always those of the run’s own knockout, so "
        "all panels speak of the same samples."
    )
    return Piece(name="windows", views=views, caption=caption)


def _blocks(kind: str) -> str:
    if kind.startswith("window:"):
        return f"{kind.removeprefix('window:')} blocks up to the layer"
    return {"cumulative": "all blocks up to the layer", "single": "one block alone"}.get(kind, kind)


def words(run: RunView, dataset: str) -> list[str]:
    """How much of the effect a few blocks, or one alone, can do."""
    layer = chosen_layer(run, dataset)
    rows = where(run.evidence["windows"], dataset=dataset, layer=layer, mode="strict", pathway="Q")
    each = [f"{row['layers']} {number(float(row['delta_p']))}" for row in records(rows)]
    return [f"ΔP of Q at layer {layer} in strict mode, by the blocks cut: {'; '.join(each)}."]


SHOWN = shown_as_curves(
    piece,
    name="windows",
    title="The knockout in fewer blocks",
    words=words,
    numbers=table_at_layer(
        "windows",
        ["Mode", "Blocks cut", "ΔP of Q", "ΔP of A", "n of Q", "n of A"],
        lambda at: side_by_side(at, ("mode", "layers"), "delta_p", number),
    ),
    claims=("window-moves-q",),
)
