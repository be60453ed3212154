"""windows.csv: effects of the knockout in all blocks up to a layer, in a window, and in one."""

from __future__ import annotations

import pandas as pd

from anchorscope.engine.interventions import window_knockouts
from anchorscope.evidence.pieces import Piece, PieceInputs, effect_rows
from anchorscope.records import MODES
from anchorscope.run_folder import table_columns


def windows_table(inputs: PieceInputs) -> pd.DataFrame:
    """One row per layer, choice of blocks, mode and pathway: mean effect with its interval.

    The groups are those of the run's own knockout under every choice, so that the curves are of
    the same samples.
    """
    readings, config = inputs.readings, inputs.config
    blocks = {"knockout": config.layers} | {
        name: name.replace("window-", "window:")
        for name in readings.logits
        if name == "single" or name.startswith("window-")
    }
    frames = []
    for mode in MODES:
        groups = inputs.groups(mode)
        for name, layers in blocks.items():
            rows = effect_rows(inputs, name, groups, subsets=("all",), pathways=("Q", "A"))
            frames.append(rows.assign(layers=layers))
    columns = list(table_columns.EVIDENCE["windows"])
    return pd.concat(frames, ignore_index=True).reindex(columns=columns)


PIECE = Piece(
    tables=lambda inputs: [lambda: {"windows": windows_table(inputs)}],
    passes=window_knockouts,
)
