"""heads.csv and heads_agreement.csv: which heads carry the flow, and whether datasets agree."""

from __future__ import annotations

import itertools
from typing import cast

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from anchorscope.evidence.means import group_means
from anchorscope.pathways.effects import Delta, delta_p, flips
from anchorscope.probes.metrics import LEVEL
from anchorscope.records import Estimate

COLUMNS = (
    "model", "dataset", "block", "head", "set", "layer", "n", "delta_p", "low", "high",
    "flip_rate",
)  # fmt: skip
AGREEMENT_COLUMNS = ("dataset_a", "dataset_b", "spearman", "low", "high", "n")
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
    return pd.DataFrame(found, columns=list(COLUMNS))


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
    return pd.DataFrame(rows, columns=list(AGREEMENT_COLUMNS))


def spearman(x: np.ndarray, y: np.ndarray, *, seed: int, resamples: int = 1000) -> Estimate:
    """Spearman's correlation with its bootstrap interval; NaN below three pairs."""
    n = len(x)
    if n < 3:
        return Estimate(np.nan, np.nan, np.nan, n)
    value = float(_rank_correlation(x[None], y[None])[0])
    rows = np.random.default_rng(seed).integers(n, size=(resamples, n))
    drawn = _rank_correlation(x[rows], y[rows])
    known = drawn[np.isfinite(drawn)]
    if not (np.isfinite(value) and len(known)):
        return Estimate(value, np.nan, np.nan, n)
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high), n)


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The correlation of ranks in each row; NaN where a row has one value only."""
    x, y = (cast(np.ndarray, rankdata(v, axis=1)) for v in (x, y))
    x, y = (v - v.mean(axis=1, keepdims=True) for v in (x, y))
    size = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return np.divide((x * y).sum(axis=1), size, out=np.full(len(x), np.nan), where=size > 0)
