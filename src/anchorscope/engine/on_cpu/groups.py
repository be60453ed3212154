"""Query heads that share their keys, as one head with as many times the queries.

On a CPU torch's kernel takes each query head by itself, and goes over the keys and values that
several share as often. Taken together they are gone over once, which is faster in bfloat16; in
float32 nothing is gained (benchmarks/attention.py).
"""

from __future__ import annotations

import platform
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from anchorscope.models.device import cpu_has_bfloat16


def wins_by_group(query: Tensor) -> bool:
    """Whether queries [row, head, query, head width] attend sooner so, where they lie.

    The choice follows from the processor, the dtype and the shape alone: two runs on like machines
    must round alike. A row's single query, in a step of decoding, attends later so.
    """
    several = query.shape[2] > 1 and query.dtype == torch.bfloat16
    return several and query.device.type == "cpu" and _suits_processor()


@cache
def _suits_processor() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64") and cpu_has_bfloat16()


def attend_by_group(
    query: Tensor, pair: tuple[Tensor, Tensor], bias: Tensor, scale: float
) -> Tensor:
    """The values [row, head, query, head width]; keys and values are [row, key head, key, ...]."""
    together, bias = in_groups(query, bias, pair[0].shape[1])
    out = scaled_dot_product_attention(together, *pair, attn_mask=bias, scale=scale)
    return out.reshape(*query.shape[:3], -1)


def in_groups(query: Tensor, bias: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Queries [row, group, head and query, head width], and the bias of their scores like them."""
    rows, heads, steps, width = query.shape
    together = steps * heads // groups
    if bias.shape[1] == 1:
        bias = bias.repeat(1, 1, heads // groups, 1)
    else:
        bias = bias.reshape(rows, groups, together, -1)
    return query.reshape(rows, groups, together, width), bias
