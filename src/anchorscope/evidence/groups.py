"""Who belongs to which group at which layer: pathway, predicted class, true class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from anchorscope.pathways.effects import prediction
from anchorscope.pathways.grouping import ROLES, Mode, pathways, regroup
from anchorscope.probes.readings import Readings

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
