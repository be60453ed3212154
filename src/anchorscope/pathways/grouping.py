"""Which pathway each sample takes at each layer, in paper mode and in strict mode."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from anchorscope.errors import UserError, unknown
from anchorscope.pathways.effects import flips, prediction
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Mode
from anchorscope.run_folder import table_columns


class Roles(NamedTuple):
    """Which probe gives the group, and which the effect."""

    group: str
    effect: str


# Paper mode reads both from one probe, so noise that flips a sample also counts as its effect.
# In strict mode the two share no training question.
ROLES: dict[Mode, Roles] = {"paper": Roles("paper", "paper"), "strict": Roles("a", "b")}


def pathways(readings: Readings, *, probe: str) -> np.ndarray:
    """The pathway one probe gives each sample, [question, layer]: "Q" where the knockout flips
    its prediction, "A" where not, None where there is no knocked-out state.
    """
    flipped = flips(readings.of(probe), readings.of(probe, "knockout"))
    named = np.where(flipped == 1, "Q", "A").astype(object)
    named[np.isnan(flipped)] = None
    return named


def regroup(named: np.ndarray, grouping: str) -> np.ndarray:
    """Pathways [question, layer] under another grouping than each layer's own.

    `fixed:k` gives every layer the groups of layer k; `majority` makes a sample Q where it is Q
    in more than half of the layers.
    """
    layers = named.shape[1]
    layer = check_grouping(grouping, layers)
    if grouping == "per-layer":
        return named
    if layer is not None:
        chosen = named[:, layer - 1]
    else:
        chosen = np.where((named == "Q").mean(axis=1) > 0.5, "Q", "A").astype(object)
        chosen[[row[0] is None for row in named]] = None
    return np.repeat(chosen[:, None], layers, axis=1)


def check_grouping(grouping: str, layers: int) -> int | None:
    """The layer k of `fixed:k`, None for the other groupings; an error for what is neither."""
    if grouping in ("per-layer", "majority"):
        return None
    name, _, number = grouping.partition(":")
    if name == "fixed" and number.isdigit() and 1 <= int(number) <= layers:
        return int(number)
    raise UserError(
        f"Unknown grouping '{grouping}'. Accepted: per-layer, majority, fixed:k with k from 1 "
        f"to {layers}."
    )


def pathways_table(
    readings: Readings,
    *,
    dataset: str,
    modes: tuple[Mode, ...] = MODES,
    grouping: str = "per-layer",
) -> pd.DataFrame:
    """One row per question, layer and mode: table_columns.PATHWAYS.

    `prediction` and the logits are those of the effect's probe, `pathway` that of the group's.
    """
    frames = [_one_mode(readings, dataset, mode, grouping) for mode in modes]
    return pd.concat(frames, ignore_index=True)


def _one_mode(readings: Readings, dataset: str, mode: Mode, grouping: str) -> pd.DataFrame:
    if mode not in MODES:
        raise unknown("mode", mode, MODES)
    roles = ROLES[mode]
    questions, layers = len(readings.ids), readings.layers
    clean = readings.of(roles.effect)
    frame = {
        "id": np.repeat(np.array(readings.ids, dtype=object), layers),
        "dataset": dataset,
        "layer": np.tile(np.arange(1, layers + 1), questions),
        "mode": mode,
        "z": np.repeat(readings.z, layers),
        "prediction": prediction(clean).astype(np.int64).ravel(),
        "logit_clean": clean.ravel(),
        "logit_knockout": readings.of(roles.effect, "knockout").ravel(),
        "pathway": regroup(pathways(readings, probe=roles.group), grouping).ravel(),
    }
    return pd.DataFrame(frame, columns=list(table_columns.PATHWAYS))
