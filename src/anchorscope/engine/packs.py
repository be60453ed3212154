"""Packs of rows, proved right: a row's states are the same in a pack of any length as alone.

A model that looks at places in a pack is right only where they and positions are few. The checks
on load try a full pack; where a run brings a longer one, made-up rows of that length are tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anchorscope.engine.batches import PackTooLong, facts_of, set_facts
from anchorscope.engine.kv_cache import GrowingCache
from anchorscope.engine.layout import Layout

_ROW = 12  # tokens of a made-up row


def require_proved(lease: Any, layout: Layout) -> None:
    """Try a made-up pack as long as this one, where none so long was tried yet.

    A pack is as long as its tokens or as their positions. PackTooLong where its rows change one
    another.
    """
    facts = facts_of(lease.model.lm)
    # The columns bound the positions, and counting them makes no GPU wait.
    if facts.proved is None or max(len(layout.place), layout.keys) <= facts.proved:
        return
    longest = max(len(layout.place), int(layout.query_at.max()) + 1)
    if longest <= facts.proved:
        return
    right = 0
    if facts.largest is None:
        # A power of two first, so that batches of like size come to the same end.
        power = 1 << (longest - 1).bit_length()
        right, _ = longest_right(lease, (power, longest), facts.rounding)
    if not right:
        set_facts(lease.model.lm, replace(facts, largest=facts.proved))
        raise PackTooLong(lease.model, right=facts.proved, given=longest)
    set_facts(lease.model.lm, replace(facts, proved=right))


def longest_right(lease: Any, sizes: Iterable[int], rounding: float) -> tuple[int, float]:
    """Find the first pack size, in tokens, whose last row equals that row alone.

    0 where there is none. With it how far the rows were apart that were tried last.
    """
    model, far = lease.model, torch.inf
    size = model.lm.config.get_text_config().vocab_size

    def last_states(rows: Tensor) -> Tensor:
        at = torch.arange(_ROW, device=model.device).expand(len(rows), -1)
        memory = GrowingCache(model.blocks, _ROW, segmented=lease.fused)
        layout = Layout(at, at, prefix_length=0)
        return lease.run(rows.to(model.device), layout, memory, made_up=True).states[-1]

    for tokens in sizes:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randint(size // 10, size, (-(-tokens // _ROW), _ROW), generator=generator)
        far = distance(last_states(rows), last_states(rows[-1:]))
        if far < rounding:
            return tokens, far
    return 0, far


def distance(a: Tensor, b: Tensor) -> float:
    """The largest distance of two states [..., width]; see `apart`."""
    return float(apart(a, b).max())


def apart(a: Tensor, b: Tensor) -> Tensor:
    """How far states [..., width] are apart, [...]: the mean share of their values' size.

    A mean over the width, each value against itself and the layer's usual size: the few values of
    a residual stream that are a thousand times larger than the rest would hide all else.
    """
    a, b = a.float(), b.float()
    size = b.abs() + b.abs().mean(dim=-1, keepdim=True).clamp(min=1e-9)
    far = ((a - b).abs() / size).mean(dim=-1)
    # A NaN, on either side, is as far as anything can be.
    return far.nan_to_num(torch.inf, posinf=torch.inf)
