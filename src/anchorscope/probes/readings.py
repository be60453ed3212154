"""Readings: the logit that each probe gives each question it was not trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anchorscope.errors import unknown
from anchorscope.probes.probe_set import ProbeSet

NO_CLASS = -1  # neither right nor wrong, and in no fold


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Logits of z = 1 (wrong) that each probe gives each question it was not trained on."""

    ids: tuple[str, ...]
    z: np.ndarray  # [question] int, 1 = wrong, 0 = right
    fold: np.ndarray  # [question] int
    probes: tuple[str, ...]  # ("paper", "a", "b")
    # intervention -> [probe, question, layer] float64; NaN: no state for that question.
    logits: Mapping[str, np.ndarray]
    entity: np.ndarray | None = None  # [question] text; None: every question has its own

    @property
    def layers(self) -> int:
        return self.logits["clean"].shape[2]

    @property
    def entity_by_id(self) -> dict[str, str]:
        """The entity of each question, by its id; the id itself where none is known."""
        entity = self.ids if self.entity is None else self.entity.tolist()
        return dict(zip(self.ids, entity, strict=True))

    @property
    def layer_numbers(self) -> range:
        """The layers k, from 1."""
        return range(1, self.layers + 1)

    def at(self, layer: int, probe: str, intervention: str = "clean") -> np.ndarray:
        """The logits of one probe at layer k (from 1) under one intervention, [question]."""
        return self.of(probe, intervention)[:, layer - 1]

    def of(self, probe: str, intervention: str = "clean") -> np.ndarray:
        """The logits of one probe under one intervention, [question, layer]."""
        if intervention not in self.logits:
            raise unknown("intervention", intervention, self.logits)
        return self.logits[intervention][self.probes.index(probe)]


def read_abstained(
    probes: ProbeSet,
    states: Mapping[str, np.ndarray],
    *,
    ids: Sequence[str],
    entity: np.ndarray | None = None,
) -> Readings:
    """Readings of abstentions, from states [question, layer, width] of each pass.

    They have no class to learn, so no probe was trained on them and every fold's may read them.
    """
    none = np.full(len(ids), NO_CLASS)
    return Readings(
        ids=tuple(ids),
        z=none,
        fold=none,
        probes=probes.probes,
        logits={name: probes.mean_logits(own) for name, own in states.items()},
        entity=entity,
    )
