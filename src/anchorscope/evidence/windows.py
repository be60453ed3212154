"""windows.csv: the knockout in all blocks up to a layer, in a few, and in one alone."""

from __future__ import annotations

import pandas as pd

from anchorscope.engine.passes import window_knockouts
from anchorscope.evidence.groups import effect_rows, groups_of
from anchorscope.evidence.pieces import Piece, PieceInputs, Tables
from anchorscope.pathways.effects import Delta
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES
from anchorscope.run_folder import table_columns
from anchorscope.stats.intervals import Draws


def windows_table(
    readings: Readings,
    *,
    model: str,
    dataset: str,
    layers: str = "cumulative",
    grouping: str = "per-layer",
    unit: Delta = "points",
    draws: Draws | None = None,
) -> pd.DataFrame:
    """One row per layer, choice of blocks, mode and pathway: mean effect with its interval.

    `layers` is the choice behind the run's own knockout. Its groups stay for every other choice,
    so that the curves speak of the same samples.
    """
    named = {"knockout": layers} | {
        name: name.replace("window-", "window:")
        for name in readings.logits
        if name == "single" or name.startswith("window-")
    }
    frames = []
    for mode in MODES:
        groups = groups_of(readings, mode, grouping=grouping)
        for name, blocks in named.items():
            rows = effect_rows(
                readings,
                name,
                groups,
                subsets=("all",),
                pathways=("Q", "A"),
                unit=unit,
                draws=draws,
            )
            frames.append(rows.assign(model=model, dataset=dataset, layers=blocks))
    return pd.concat(frames, ignore_index=True).reindex(
        columns=list(table_columns.EVIDENCE["windows"])
    )


def _tables(inputs: PieceInputs) -> Tables:
    how = {"layers": inputs.config.layers, "unit": inputs.unit, "draws": inputs.draws}
    return {"windows": windows_table(inputs.readings, **inputs.names, **how)}


PIECE = Piece(tables=_tables, passes=window_knockouts)
