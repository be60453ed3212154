"""Mean effects of one intervention, for every layer, subset and pathway."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from anchorscope.evidence.groups import GROUPS, SUBSETS, Groups, Subset
from anchorscope.evidence.means import group_means
from anchorscope.pathways.effects import Delta, delta_p
from anchorscope.pathways.grouping import ROLES
from anchorscope.probes.readings import Readings


@dataclass(frozen=True, kw_only=True)
class Draws:
    """How many draws stand behind an interval, and the unit of ΔP."""

    seed: int = 0
    resamples: int = 1000
    unit: Delta = "points"  # or "relative"


def effect_rows(
    readings: Readings,
    intervention: str,
    groups: Groups,
    *,
    subsets: Sequence[Subset] = SUBSETS,
    pathways: Sequence[str] = GROUPS,
    draws: Draws | None = None,
) -> pd.DataFrame:
    """One row per subset, pathway and layer: n, ΔP and logit change with their intervals."""
    draws = draws or Draws()
    probe = ROLES[groups.mode].effect
    clean, other = readings.of(probe), readings.of(probe, intervention)
    keys = list(itertools.product(subsets, pathways))
    member = np.hstack([groups.subset(subset) & groups.of(pathway) for subset, pathway in keys])
    frame = {
        "layer": np.tile(np.arange(1, readings.layers + 1), len(keys)),
        "mode": groups.mode,
        "subset": np.repeat([subset for subset, _ in keys], readings.layers),
        "pathway": np.repeat([pathway for _, pathway in keys], readings.layers),
    }
    # Both units side by side, so that they share their draws.
    units: dict[str, Delta] = {"delta_p": draws.unit, "delta_logit": "logit"}
    effects = [np.tile(delta_p(clean, other, delta=unit), len(keys)) for unit in units.values()]
    found = group_means(
        np.hstack(effects), np.tile(member, 2), seed=draws.seed, resamples=draws.resamples
    )
    for name, part in zip(units, np.split(np.array(found), 2, axis=1), strict=True):
        value, low, high, n = part
        frame |= {"n": n.astype(int), name: value, f"{name}_low": low, f"{name}_high": high}
    return pd.DataFrame(frame)
