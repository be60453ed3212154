"""Sets of heads to knock out together, and the questions they are ranked and read on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from anchorscope.evidence.donors import generator
from anchorscope.pathways.effects import delta_p

TOP = (4, 8)


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


def first_of(ids: Sequence[str], *, limit: int, seed: int) -> list[str]:
    """The first `limit` questions in an order that seed and ids alone decide."""
    return sorted(ids, key=lambda id: (generator(seed, "heads", id).random(), id))[:limit]
