"""Sets of heads to cut together, and their tables: heads.csv and heads_agreement.csv."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd

from anchorscope.pathways.effects import Delta, delta_p, flips
from anchorscope.run_folder import table_columns
from anchorscope.stats.intervals import group_means
from anchorscope.stats.ranking import spearman

_KEY = ["dataset", "block", "head", "set", "layer"]


TOP = (4, 8)  # how many of the strongest heads are cut together


@dataclass(frozen=True, kw_only=True)
class HeadSet:
    """Heads knocked out together, and how their rows are named."""

    block: int  # from 1; 0: of several blocks
    head: int  # from 0; -1: all of the block; -n: n heads of several blocks
    set: str  # "" for a single head, "block", "top4" ...
    heads: tuple[tuple[int, int], ...]  # (block from 1, head from 0)

    @property
    def name(self) -> str:
        return f"{self.block}:{self.head}"


def one_by_one(blocks: Sequence[int], heads: int) -> list[HeadSet]:
    """Every head of these blocks alone, then each block's heads together."""
    sets = [
        HeadSet(block=block, head=head, set="", heads=((block, head),))
        for block in blocks
        for head in range(heads)
    ]
    for block in blocks:
        every = tuple((block, head) for head in range(heads))
        sets.append(HeadSet(block=block, head=-1, set="block", heads=every))
    return sets


def top_sets(scores: pd.DataFrame, ids: Sequence[str], sizes: Sequence[int] = TOP) -> list[HeadSet]:
    """The heads that take most from the predictions on the questions `ids`, together.

    `scores` holds the logits of single heads; ranked by the mean ΔP of each. A size that would
    be all of the heads or more is left out.
    """
    single = scores[(scores["set"] == "") & scores["id"].isin(list(ids))]
    logits = (np.asarray(single[name]) for name in ("logit_clean", "logit_knockout"))
    effect = delta_p(*logits)
    named = np.stack([np.asarray(single["block"]), np.asarray(single["head"])], axis=1)
    pairs, of = np.unique(named, axis=0, return_inverse=True)
    mean = np.bincount(of.ravel(), effect) / np.bincount(of.ravel())
    # Stable over ordered pairs: of equal effects the lower block and head come first.
    ranked = pairs[np.argsort(mean, kind="stable")].tolist()
    heads = tuple((int(block), int(head)) for block, head in ranked)
    return [
        HeadSet(block=0, head=-size, set=f"top{size}", heads=heads[:size])
        for size in sizes
        if size < len(heads)
    ]


def heads_table(
    rows: pd.DataFrame,
    *,
    model: str,
    unit: Delta = "points",
    seed: int = 0,
    resamples: int = 1000,
    entity_by_id: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """One row per head or set of heads and layer read: mean ΔP over all samples, share of flips.

    `rows` are those of evidence/heads: one per question, head (or set) and layer. Entities are
    drawn for the intervals; without them questions are.
    """
    used = rows.assign(
        effect=delta_p(rows["logit_clean"].to_numpy(), rows["logit_knockout"].to_numpy(),
                       delta=unit),
        flip=flips(rows["logit_clean"].to_numpy(), rows["logit_knockout"].to_numpy()),
    )  # fmt: skip
    records = []
    for _, part in used.groupby("dataset", sort=False):
        wide = part.pivot(index="id", columns=_KEY, values="effect")
        effect = wide.to_numpy(dtype=float)
        entity = np.array([(entity_by_id or {}).get(str(id), str(id)) for id in wide.index])
        means = group_means(
            effect, ~np.isnan(effect), seed=seed, resamples=resamples, entity=entity
        )
        flipped = part.pivot(index="id", columns=_KEY, values="flip").to_numpy(dtype=float)
        shares = [float(np.nanmean(column)) for column in flipped.T]
        for place, key in enumerate(wide.columns):
            mean = (means.n[place], means.value[place], means.low[place], means.high[place])
            records.append((model, *cast(tuple, key), *mean, shares[place]))
    return pd.DataFrame(records, columns=list(table_columns.EVIDENCE["heads"]))


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
            correlation = spearman(both[:, 0], both[:, 1], seed=seed, resamples=resamples)
            rows.append((one, other, *correlation))
    return pd.DataFrame(rows, columns=list(table_columns.EVIDENCE["heads_agreement"]))
