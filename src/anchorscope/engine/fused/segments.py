"""Attention over keys in up to three places, in one Triton kernel: nothing is laid together first.

The prefix lies once for all rows, a trunk once for each question, and a row's own keys one after
the other as the model packs them. A program of the kernel takes the queries of one row that share
a key head. Scores, softmax and sums are in float32; weights meet the values in the model's dtype.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from anchorscope.engine.layout import Layout
from anchorscope.engine.memory import Segments

_LOG2E = 1.4426950408889634
# They differ from pass to pass: no kernel for each.
_VARIABLE = ["front", "middle", "queries", "own", "bias_row", "bias_head", "bias_query"]


@triton.jit
def _meet(
    query, best, total, out, key, value, bias, length, begin, token_stride, scale,
    width: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr, exact: tl.constexpr,
    biased: tl.constexpr = True,  # pyright: ignore[reportArgumentType]
):  # fmt: skip
    """The running maximum, sum and values of the softmax after one tile of keys."""
    number = begin + tl.arange(0, block_n)
    column = tl.arange(0, block_d)
    inside = (number < length)[:, None]
    if width < block_d:
        inside = inside & (column < width)[None, :]
    at = number[:, None] * token_stride + column[None, :]
    keys = tl.load(key + at, mask=inside, other=0.0)
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee" if exact else "tf32") * scale
    there = (number < length)[None, :]
    if biased:
        added = tl.load(bias + number[None, :], mask=there, other=float("-inf"))
        scores += added.to(tl.float32) * 1.4426950408889634
    else:
        scores = tl.where(there, scores, float("-inf"))
    top = tl.maximum(best, tl.max(scores, axis=1))
    base = tl.where(top == float("-inf"), 0.0, top)  # no key of this tile or before was seen
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(best - base)
    values = tl.load(value + at, mask=inside, other=0.0)
    out = tl.dot(
        weights.to(values.dtype),
        values,
        out * shrink[:, None],
        input_precision="ieee" if exact else "tf32",
    )
    return top, total * shrink + tl.sum(weights, axis=1), out


@triton.jit(do_not_specialize=_VARIABLE)
def _attend(
    query, out, starts, counts, bias, open_front, rows,
    front_key, front_value, middle_key, middle_value, own_key, own_value,
    front, middle, queries, own, scale,
    query_token, bias_row, bias_head, bias_query,
    front_head, front_token, middle_row, middle_head, middle_token, own_token,
    group: tl.constexpr, width: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
    block_d: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    key_head = tl.program_id(1)
    count = tl.load(counts + row).to(tl.int32)
    first = tl.program_id(2) * block_m
    if first >= count * group:
        return
    start = tl.load(starts + row)
    # Queries of one token that share a key head follow one another.
    at = first + tl.arange(0, block_m)
    token = at // group
    head = key_head * group + at % group
    column = tl.arange(0, block_d)
    asked = (token < count)[:, None]
    if width < block_d:
        asked = asked & (column < width)[None, :]
    # Far steps are taken by single pointers: offsets within a row fit into 32 bits.
    place = token[:, None] * query_token + head[:, None] * width + column[None, :]
    asks = tl.load(query + start * query_token + place, mask=asked, other=0.0)
    # Rows of the bias are padded on the left.
    line = tl.where(token < count, queries - count + token, 0)
    bias += row.to(tl.int64) * bias_row
    beside = bias + (head * bias_head + line * bias_query)[:, None]
    best = tl.full([block_m], float("-inf"), tl.float32)
    total = tl.zeros([block_m], tl.float32)
    values = tl.zeros([block_m, block_d], tl.float32)
    front_key += key_head * front_head
    front_value += key_head * front_head
    # Few-shot examples are seen whole by nearly every row, and most keys are theirs. Their zeros,
    # one for each query and key, would take longer to load than the keys.
    if tl.load(open_front + row):
        for begin in range(0, front, block_n):
            best, total, values = _meet(
                asks, best, total, values, front_key, front_value, beside, front, begin,
                front_token, scale, width, block_n, block_d, exact,
                biased=False,  # pyright: ignore[reportArgumentType]
            )  # fmt: skip
    else:
        for begin in range(0, front, block_n):
            best, total, values = _meet(
                asks, best, total, values, front_key, front_value, beside, front, begin,
                front_token, scale, width, block_n, block_d, exact,
            )  # fmt: skip
    there = tl.load(rows + row) * middle_row + key_head * middle_head
    for begin in range(0, middle, block_n):
        best, total, values = _meet(
            asks, best, total, values, middle_key + there, middle_value + there, beside + front,
            middle, begin, middle_token, scale, width, block_n, block_d, exact,
        )  # fmt: skip
    there = start * own_token + key_head * width
    behind = front + middle + queries - count
    for begin in range(0, count * own, block_n):
        best, total, values = _meet(
            asks, best, total, values, own_key + there, own_value + there, beside + behind,
            count, begin, own_token, scale, width, block_n, block_d, exact,
        )  # fmt: skip
    values = values / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + start * query_token + place, values.to(out.dtype.element_ty), mask=asked)


class Tile(NamedTuple):
    """How many queries and keys a program takes at a time, in how many warps and stages."""

    queries: int
    keys: int
    warps: int
    stages: int = 1


def tile_for(queries: int, width: int, dtype: torch.dtype) -> Tile:
    """The tile for so many queries of a row that share a key head.

    The fastest of those tried on an H200. Rows are short, so many small programs at once hide the
    wait for memory; with more than 32 keys at a time heads of width 128 fall back by half.
    """
    if dtype == torch.float32:
        return Tile(16, 32, 4)
    if queries <= 16:
        return Tile(16, 32, 1)
    return Tile(64 if width <= 128 else 32, 32, 4, stages=2 if width <= 128 else 1)


def attend_segments(
    query: Tensor,
    segments: Segments,
    bias: Tensor,
    open_prefix: Tensor,
    layout: Layout,
    scale: float,
) -> Tensor:
    """The values [1, token, head, head width] for packed queries [1, head, token, head width].

    `open_prefix` [row, 1]: where the bias is 0 on the whole prefix, which is then not read.
    """
    query = query.transpose(1, 2).contiguous()
    heads, width = query.shape[2:]
    out = torch.empty_like(query)
    (middle_key, middle_value), own = segments.middle, segments.own
    key_heads = middle_key.shape[1] if own is None else own[0].shape[2]
    group = heads // key_heads
    front_key, front_value = segments.front or segments.middle
    own_key, own_value = own or segments.middle
    rows, queries = layout.query_at.shape
    block_m, block_n, warps, stages = tile_for(queries * group, width, query.dtype)
    block_d = max(16, triton.next_power_of_2(width))
    grid = (rows, key_heads, triton.cdiv(queries * group, block_m))
    kernel: Any = _attend
    kernel[grid](
        query, out, layout.starts, layout.counts, bias, open_prefix, segments.rows,
        front_key, front_value, middle_key, middle_value, own_key, own_value,
        0 if segments.front is None else front_key.shape[2], middle_key.shape[2], queries,
        int(own is not None), scale * _LOG2E,
        heads * width, bias.stride(0), bias.stride(1) if bias.shape[1] > 1 else 0, bias.stride(2),
        front_key.stride(1), front_key.stride(2),
        middle_key.stride(0), middle_key.stride(1), middle_key.stride(2), own_key.stride(1),
        group, width, block_m, block_n, block_d, query.dtype == torch.float32,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out
