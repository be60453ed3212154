"""windows.csv: the knockout in all blocks up to a layer, in a few, and in one alone."""

from __future__ import annotations

import pandas as pd

from anchorscope.evidence.effect_rows import Draws, effect_rows
from anchorscope.evidence.groups import groups_of
from anchorscope.pathways.grouping import MODES
from anchorscope.probes.readings import Readings

COLUMNS = (
    "model", "dataset", "layer", "layers", "mode", "pathway", "n",
    "delta_p", "delta_p_low", "delta_p_high",
    "delta_logit", "delta_logit_low", "delta_logit_high",
)  # fmt: skip


def windows_table(
    readings: Readings,
    *,
    model: str,
    dataset: str,
    layers: str = "cumulative",
    grouping: str = "per-layer",
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
                readings, name, groups, subsets=("all",), pathways=("Q", "A"), draws=draws
            )
            frames.append(rows.assign(model=model, dataset=dataset, layers=blocks))
    return pd.concat(frames, ignore_index=True).reindex(columns=list(COLUMNS))
