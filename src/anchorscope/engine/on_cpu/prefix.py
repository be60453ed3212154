"""Attention to the prefix and to the rest apart, put together by their shares of the softmax.

All rows see the same prefix, so their queries meet it as one long row: nothing of it is copied
for each of them, no mask is read, and a token that rows share attends once. Both parts are made by
the kernel that torch would choose for the whole.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

import torch
from torch import Tensor

from anchorscope.engine.layout import Layout
from anchorscope.engine.masks import Rule
from anchorscope.engine.memory import Pair
from anchorscope.engine.on_cpu.groups import in_groups

# Attention that also gives the logarithm of each query's sum of weights; None: this torch has none.
_KERNEL: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def wins_apart(query: Tensor, layout: Layout) -> bool:
    """Whether packed queries [1, head, token, head width] attend sooner so, where they lie.

    Measured in float32 on ARM cores: 4 % of a run's passes. In bfloat16 with AMX no gain could be
    told from noise (docs/performance.md). Not by a row's single query, in a step of decoding. The
    choice follows from the processor, the dtype and the shape alone: two runs on like machines must
    round alike, and a proof must try what a run does.
    """
    several = layout.query_at.shape[1] > 1 and query.dtype == torch.float32
    free = _KERNEL is not None and not torch.is_grad_enabled()
    return several and free and query.device.type == "cpu" and _suits_processor()


@cache
def _suits_processor() -> bool:
    return platform.machine().lower() in ("aarch64", "arm64")


def attend_apart(
    query: Tensor,
    prefix: Pair,
    own: Pair,
    bias: Tensor,
    seen: Tensor,
    layout: Layout,
    scale: float,
) -> Tensor:
    """The values [1, token, head, head width] of packed queries [1, head, token, head width].

    `own` are the keys and values of each row but for the prefix, and `bias` what is added to
    their scores; `seen` [row, 1, 1] says which rows see the prefix.
    """
    front, its_sum = _to_prefix(query, prefix, scale)
    rest, rest_sum = _to_own(layout.in_rows(query), own, bias, scale)
    values, log_sum = layout.pack(rest.transpose(1, 2)), layout.pack(rest_sum.transpose(1, 2))
    share = torch.sigmoid(its_sum.transpose(1, 2) - log_sum)
    if not seen.all():
        share = share * layout.pack(seen.expand(*layout.query_at.shape, 1))
    return torch.lerp(values, front.transpose(1, 2), share[..., None].to(values.dtype))


def _to_prefix(query: Tensor, prefix: Pair, scale: float) -> tuple[Tensor, Tensor]:
    """Values [1, head, token, head width] and the logarithms of the sums [1, head, token]."""
    times = query.shape[1] // prefix[0].shape[1]
    key, value = (of.repeat_interleave(times, dim=1) for of in prefix)  # small, and one for all
    return _KERNEL(query, key, value, scale=scale)


def _to_own(query: Tensor, own: Pair, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The same of queries in rows, [row, head, query, head width] and [row, head, query].

    Query heads that share their keys go over them together.
    """
    together, bias = in_groups(query, bias, own[0].shape[1])
    out, log_sum = _KERNEL(together, *own, attn_mask=bias, scale=scale)
    return out.reshape(*query.shape[:3], -1), log_sum.reshape(query.shape[:3])


def seen_whole(layout: Layout, block: int, rule: Rule, dtype: torch.dtype) -> Tensor | None:
    """Which rows see the prefix, [row, 1, 1]; None where one sees a part of it."""
    open_rows = layout.open_prefix(block, rule, dtype)
    shut_rows = layout.shut_prefix(block, rule, dtype)
    return open_rows[..., None] if (open_rows | shut_rows).all() else None
