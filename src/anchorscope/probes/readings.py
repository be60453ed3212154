"""Readings: the logit that each probe gives each question it was not trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anchorscope.errors import UserError, unknown
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

    def __post_init__(self) -> None:
        if "clean" not in self.logits:
            raise unknown("set of interventions", list(self.logits), ["any that holds 'clean'"])
        shape = (len(self.probes), len(self.ids), self.layers)
        for name, logits in self.logits.items():
            if logits.shape != shape:
                raise UserError(f"Logits under '{name}' are {logits.shape}, expected {shape}.")
        if not np.isfinite(self.logits["clean"]).all():
            raise UserError("Some clean logits are NaN or inf; every question needs clean ones.")

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
        if layer not in self.layer_numbers:
            raise unknown("layer", layer, [f"1 to {self.layers}"])
        return self.of(probe, intervention)[:, layer - 1]

    def of(self, probe: str, intervention: str = "clean") -> np.ndarray:
        """The logits of one probe under one intervention, [question, layer]."""
        if probe not in self.probes:
            raise unknown("probe", probe, self.probes)
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


def check_states(
    states: Mapping[str, np.ndarray], *, ids: Sequence[str], z: np.ndarray, fold: np.ndarray
) -> None:
    """Raise a UserError where states, ids, labels and folds are not of the same questions."""
    if "clean" not in states:
        raise UserError(f"States of the clean pass are missing; given: {', '.join(states)}.")
    if not len(ids) == len(z) == len(fold) or len(set(ids)) != len(ids):
        raise UserError(
            f"{len(set(ids))} different ids, {len(ids)} rows, {len(z)} labels and {len(fold)} "
            "folds were given; every question needs exactly one of each."
        )
    if not np.isin(z, (0, 1)).all():
        raise UserError(f"Labels are {np.unique(z)}; accepted: 1 (wrong) and 0 (right).")
    shape = states["clean"].shape
    for name, own in states.items():
        if own.shape != shape or len(shape) != 3 or shape[0] != len(ids):
            raise UserError(
                f"States under '{name}' are {own.shape}; expected [question, layer, width] with "
                f"{len(ids)} questions, as under 'clean' {shape}."
            )


def check_layer(x: np.ndarray, *, name: str, layer: int, ids: Sequence[str]) -> None:
    """Raise a UserError where states [question, width] of layer k are broken."""
    finite = np.isfinite(x).all(axis=1)
    if finite.all():
        return
    # Under an intervention a state that is NaN throughout means "there is none"; a state that is
    # broken in part never does, and the clean pass must be complete.
    absent = np.isnan(x).all(axis=1) if name != "clean" else np.zeros(len(x), dtype=bool)
    broken = np.flatnonzero(~finite & ~absent)
    if len(broken):
        raise UserError(
            f"States under '{name}' hold NaN or inf at layer {layer} for {len(broken)} of "
            f"{len(ids)} questions (first: {ids[broken[0]]}). Compute them again, in float32 "
            "where half precision overflows, or leave these questions out."
        )
