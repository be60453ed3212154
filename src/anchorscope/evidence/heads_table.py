"""heads.csv and heads_agreement.csv: which heads carry the flow, and whether datasets agree."""

from __future__ import annotations

import itertools
from typing import cast

import numpy as np
import pandas as pd

from anchorscope.pathways.effects import Delta, delta_p, flips
from anchorscope.run_folder import table_columns
from anchorscope.stats.intervals import group_means
from anchorscope.stats.ranking import spearman

_KEY = ["dataset", "block", "head", "set", "layer"]


def heads_table(
    rows: pd.DataFrame,
    *,
    model: str,
    unit: Delta = "points",
    seed: int = 0,
    resamples: int = 1000,
) -> pd.DataFrame:
    """One row per head or set of heads and layer read: mean ΔP over all samples, share of flips.

    `rows` are those of evidence/heads: one per question, head (or set) and layer.
    """
    used = rows.assign(
        effect=delta_p(rows["logit_clean"].to_numpy(), rows["logit_knockout"].to_numpy(),
                       delta=unit),
        flip=flips(rows["logit_clean"].to_numpy(), rows["logit_knockout"].to_numpy()),
    )  # fmt: skip
    found = []
    for _, part in used.groupby("dataset", sort=False):
        wide = part.pivot(index="id", columns=_KEY, values="effect")
        effect = wide.to_numpy(dtype=float)
        means = group_means(effect, ~np.isnan(effect), seed=seed, resamples=resamples)
        flipped = part.pivot(index="id", columns=_KEY, values="flip").to_numpy(dtype=float)
        shares = [float(np.nanmean(column)) for column in flipped.T]
        for place, key in enumerate(wide.columns):
            mean = (means.n[place], means.value[place], means.low[place], means.high[place])
            found.append((model, *cast(tuple, key), *mean, shares[place]))
    return pd.DataFrame(found, columns=list(table_columns.EVIDENCE["heads"]))


def heads_agreement(table: pd.DataFrame, *, seed: int = 0, resamples: int = 1000) -> pd.DataFrame:
    """One row per pair of datasets: Spearman's correlation of single heads' ΔP over the heads.

    A head read at several layers counts with its mean; heads are drawn for the interval.
    """
    single = table[(table["head"] >= 0) & (table["set"].fillna("") == "")]
    effect = single.pivot_table(index=["block", "head"], columns="dataset", values="delta_p")
    rows = []
    for one, other in itertools.combinations(list(dict.fromkeys(table["dataset"])), 2):
        if one in effect and other in effect:
            both = effect[[one, other]].dropna().to_numpy()
            found = spearman(both[:, 0], both[:, 1], seed=seed, resamples=resamples)
            rows.append((one, other, *found))
    return pd.DataFrame(rows, columns=list(table_columns.EVIDENCE["heads_agreement"]))
