"""patching.csv: how often the verdict flips when the exact question tokens are another's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from anchorscope.evidence.groups import GROUPS, SUBSETS, Groups, groups_of
from anchorscope.pathways.effects import flips
from anchorscope.pathways.grouping import MODES, ROLES
from anchorscope.probes.metrics import rate
from anchorscope.probes.readings import Readings

PATCHES = ("patch-matched", "patch-random", "patch-other", "patch-self")
COLUMNS = (
    "model", "dataset", "layer", "intervention", "mode", "subset", "pathway", "n",
    "flip_rate", "flip_low", "flip_high",
)  # fmt: skip


def patching_table(
    readings: Readings,
    *,
    model: str,
    dataset: str,
    patches: Sequence[str] = PATCHES,
    grouping: str = "per-layer",
) -> pd.DataFrame:
    """One row per layer, patch, mode, subset and pathway: share of flips, Wilson's interval.

    The groups are those of the run's knockout; what flips is the verdict of the effect's probe.
    Patches that the readings do not hold are left out; an empty group has n = 0 and NaN.
    """
    there = [name for name in patches if name in readings.logits]
    rows = []
    for mode in MODES:
        groups = groups_of(readings, mode, grouping=grouping)
        probe = ROLES[mode].effect
        for name in there:
            flipped = flips(readings.of(probe), readings.of(probe, name))
            rows += [(model, dataset, layer, name, mode, *row)
                     for layer, *row in _rates(flipped, groups)]  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rates(flipped: np.ndarray, groups: Groups) -> list[tuple]:
    rows = []
    for subset, pathway in itertools.product(SUBSETS, GROUPS):
        member = groups.subset(subset) & groups.of(pathway) & ~np.isnan(flipped)
        for layer in range(flipped.shape[1]):
            found = rate(flipped[member[:, layer], layer])
            rows.append((layer + 1, subset, pathway, found.n, *found[:3]))
    return rows
