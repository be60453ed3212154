"""Check that packing rows into one sequence leaves each row's states unchanged.

A model that depends on a token's index in the pack is right only for short packs. The checks on
load try a full pack; before a run uses a longer one, made-up rows of that length are tried.
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
    """Prove a pack length on made-up rows before its first use; raise PackTooLong if it fails.

    A pack's length is its number of tokens or its number of positions, whichever is larger.
    """
    facts = facts_of(lease.model.lm)
    # Columns bound the positions, and counting them does not synchronize with the GPU.
    if facts.proved is None or max(len(layout.place), layout.keys) <= facts.proved:
        return
    longest = max(len(layout.place), int(layout.query_at.max()) + 1)
    if longest <= facts.proved:
        return
    right = 0
    if facts.largest is None:
        # A power of two first, so that batches of similar size have the same outcome.
        power = 1 << (longest - 1).bit_length()
        right, _ = longest_right(lease, (power, longest), facts.rounding)
    if not right:
        set_facts(lease.model.lm, replace(facts, largest=facts.proved))
        raise PackTooLong(lease.model, right=facts.proved, given=longest)
    set_facts(lease.model.lm, replace(facts, proved=right))


def longest_right(lease: Any, sizes: Iterable[int], rounding: float) -> tuple[int, float]:
    """Find the first pack size, in tokens, whose last row has the same states as that row alone.

    Returns that size, 0 where there is none, and the distance measured at the last size tried.
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
    """The largest relative difference between states [..., width]; see `apart`."""
    return float(apart(a, b).max())


def apart(a: Tensor, b: Tensor) -> Tensor:
    """The mean relative difference between states [..., width] over their width, [...].

    Each difference is divided by the value's own size plus the state's mean size: otherwise the few
    values of a residual stream that are a thousand times larger than the rest would hide the rest.
    """
    a, b = a.float(), b.float()
    size = b.abs() + b.abs().mean(dim=-1, keepdim=True).clamp(min=1e-9)
    far = ((a - b).abs() / size).mean(dim=-1)
    # A NaN on either side counts as an infinite difference.
    return far.nan_to_num(torch.inf, posinf=torch.inf)
