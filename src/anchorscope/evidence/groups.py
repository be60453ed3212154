"""Samples by pathway and predicted class, and the mean effect of an intervention on each group."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd

from anchorscope.evidence.pieces import PieceInputs
from anchorscope.pathways.effects import ROLES, Delta, delta_p, pathways, prediction, regroup
from anchorscope.probes.readings import Readings
from anchorscope.records import Mode
from anchorscope.stats.intervals import group_means

Subset = Literal["all", "predicted-right", "predicted-wrong", "right", "wrong"]
SUBSETS: tuple[Subset, ...] = get_args(Subset)
PREDICTED: tuple[Subset, ...] = ("all", "predicted-right", "predicted-wrong")
GROUPS = ("Q", "A", "all")


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The groups of one mode. `pathway` comes from the group's probe, ŷ from the effect's."""

    mode: Mode
    pathway: np.ndarray  # [question, layer], "Q", "A", or None where nothing was knocked out
    predicted: np.ndarray  # [question, layer], 1.0 = wrong
    z: np.ndarray  # [question]

    def of(self, pathway: str) -> np.ndarray:
        """The members of a pathway, [question, layer] bool; "all": of either."""
        q, a = self.pathway == "Q", self.pathway == "A"
        return {"Q": q, "A": a, "all": q | a}[pathway]

    def subset(self, name: Subset) -> np.ndarray:
        """The members of a subset, [question, layer] bool."""
        wrong = np.broadcast_to((self.z == 1)[:, None], self.predicted.shape)
        masks = {
            "all": np.ones_like(wrong),
            "predicted-right": self.predicted == 0,
            "predicted-wrong": self.predicted == 1,
            "right": ~wrong,
            "wrong": wrong,
        }
        return masks[name]


def groups_of(readings: Readings, mode: Mode, *, grouping: str = "per-layer") -> Groups:
    """The groups that the run's own knockout gives in one mode."""
    roles = ROLES[mode]
    return Groups(
        mode=mode,
        pathway=regroup(pathways(readings, probe=roles.group), grouping),
        predicted=prediction(readings.of(roles.effect)),
        z=readings.z,
    )


def effect_rows(
    inputs: PieceInputs,
    intervention: str,
    groups: Groups,
    *,
    subsets: Sequence[Subset] = SUBSETS,
    pathways: Sequence[str] = GROUPS,
) -> pd.DataFrame:
    """One row per subset, pathway and layer: n, ΔP and logit change with their intervals."""
    readings, draws, probe = inputs.readings, inputs.draws, ROLES[groups.mode].effect
    clean, other = readings.of(probe), readings.of(probe, intervention)
    keys = list(itertools.product(subsets, pathways))
    member = np.hstack([groups.subset(subset) & groups.of(pathway) for subset, pathway in keys])
    frame = {
        "model": inputs.model,
        "dataset": inputs.dataset,
        "layer": np.tile(np.arange(1, readings.layers + 1), len(keys)),
        "mode": groups.mode,
        "subset": np.repeat([subset for subset, _ in keys], readings.layers),
        "pathway": np.repeat([pathway for _, pathway in keys], readings.layers),
    }
    # Both units side by side, so that they share their draws.
    units: dict[str, Delta] = {"delta_p": inputs.unit, "delta_logit": "logit"}
    effects = [np.tile(delta_p(clean, other, delta=unit), len(keys)) for unit in units.values()]
    means = group_means(
        np.hstack(effects),
        np.tile(member, 2),
        seed=draws.seed,
        resamples=draws.resamples,
        entity=readings.entity,
    )
    for name, part in zip(units, np.split(np.array(means), 2, axis=1), strict=True):
        value, low, high, n = part
        frame |= {"n": n.astype(int), name: value, f"{name}_low": low, f"{name}_high": high}
    return pd.DataFrame(frame)
