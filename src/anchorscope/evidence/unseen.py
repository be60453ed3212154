"""Readings of questions that no probe was trained on: abstentions have no class to learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from anchorscope.probes.probeset import ProbeSet
from anchorscope.probes.readings import Readings

NO_CLASS = -1  # neither right nor wrong, and in no fold


def read_unseen(
    probes: ProbeSet, states: Mapping[str, np.ndarray], *, ids: Sequence[str]
) -> Readings:
    """The mean logit over the folds' probes, for states [question, layer, width] of each kind.

    Every fold's probe may read these questions. A mean of linear probes is the probe of the mean
    weights; it wavers less than one fold's probe, so it flips a little less by noise.
    """
    weights = probes.weights.mean(axis=1, dtype=np.float64)  # [probe, layer, width]
    intercept = probes.intercept.mean(axis=1)
    logits = {
        name: np.einsum("qlw,plw->pql", np.asarray(of, dtype=np.float64), weights)
        + intercept[:, None]
        for name, of in states.items()
    }
    nothing = np.full(len(ids), NO_CLASS)
    return Readings(ids=tuple(ids), z=nothing, fold=nothing, probes=probes.probes, logits=logits)
