"""Triton kernels: attention over segmented keys, RMS norms, and the choice of the next token.

Attention reads the prefix where it is, so it is never copied into every row; the other two read
their input once instead of a dozen times. All round where the models' own code rounds: some models
(Qwen2.5) have keys so large that one rounding less gives other attention, and other answers. The
proof on load (`check`) runs through them, and a model that fails it with them runs without them.
This file needs Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from anchorscope.engine.layout import Layout, Segments

_BLOCK = 2048

# --- RMS norms ---


@triton.jit(do_not_specialize=["count"])
def _norm(
    source, weight, out, count, eps, width: tl.constexpr, padded: tl.constexpr, rows: tl.constexpr,
    more: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)[:, None]
    column = tl.arange(0, padded)
    inside = (row < count) & (column < width)[None, :]
    at = row * width + column[None, :]
    kind = out.dtype.element_ty
    x = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    x = x * (1.0 / tl.sqrt(tl.sum(x * x, axis=1) / width + eps))[:, None]
    # Llama rounds before it scales; Gemma scales by one more than the weight, and rounds then.
    x = x * (1.0 + scale) if more else x.to(kind).to(tl.float32) * scale
    tl.store(out + at, x.to(kind), mask=inside)


def normed(x: Tensor, weight: Tensor, eps: float, *, more: bool) -> Tensor:
    """RMS norm over the last dimension, scaled by the weight, or with `more` by weight + 1."""
    x = x.contiguous()
    out, width = torch.empty_like(x), x.shape[-1]
    count, padded = x.numel() // width, triton.next_power_of_2(width)
    rows = max(1, _BLOCK // padded)  # heads are narrow: one row each would be too little work
    kernel: Any = _norm
    grid = (triton.cdiv(count, rows),)
    kernel[grid](x, weight, out, count, eps, width, padded, rows, more, num_warps=4)
    return out


_UNITS = 4  # in the last place: a model's own norm rounds between its steps


@torch.no_grad()
def install_norms(lm: nn.Module) -> Callable[[], None]:
    """Install the fused RMS norm where it agrees with a module's own; returns the undo function.

    Where gradients are enabled, the module's own code runs.
    """
    tried: dict[tuple, bool | None] = {}
    replaced: list[nn.Module] = []
    for module in lm.modules():
        weight, eps = getattr(module, "weight", None), _epsilon(module)
        if not isinstance(weight, Tensor) or eps is None or "forward" in module.__dict__:
            continue
        if not type(module).__name__.endswith("RMSNorm"):
            continue
        kind = (type(module), weight.dtype, weight.shape, eps)
        if kind not in tried:
            tried[kind] = norm_adds_one(module)
        if (more := tried[kind]) is not None:
            module.forward = _either(module.forward, weight, eps, more)
            replaced.append(module)

    def restore() -> None:
        for module in replaced:
            del module.forward

    return restore


def _either(own: Callable[[Tensor], Tensor], weight: Tensor, eps: float, more: bool) -> Any:
    def forward(x: Tensor) -> Tensor:
        return own(x) if torch.is_grad_enabled() else normed(x, weight, eps, more=more)

    return forward


def norm_adds_one(module: Any) -> bool | None:
    """Whether a norm scales by one more than its weight (Gemma) or by the weight (Llama).

    None where the kernel reproduces neither on random input.
    """
    weight, eps = module.weight, _epsilon(module)
    if weight.dim() != 1 or eps is None:
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, len(weight), generator=generator, dtype=torch.float32).to(weight)
    try:
        own = module(x)
        unit = torch.finfo(own.dtype).eps * _UNITS
        close = partial(torch.allclose, own.float(), rtol=unit, atol=unit * float(own.abs().max()))
        ours = ((more, normed(x, weight, eps, more=more).float()) for more in (False, True))
        return next((more for more, normed_x in ours if close(normed_x)), None)
    except Exception:  # it takes more than x; Triton has errors of its own as well
        return None


def _epsilon(module: nn.Module) -> float | None:
    """The epsilon of a norm module, by the attribute names in use."""
    names = ("variance_epsilon", "eps")
    return next((float(eps) for n in names if (eps := getattr(module, n, None)) is not None), None)


# --- The likeliest token of each row, with its log-probability and the entropy, in one pass ---

# By torch's own functions the logits of a large vocabulary are read and written a dozen times.


@triton.jit(do_not_specialize=["size", "stride"])
def _choose(logits, chosen, log_prob, entropy, size, stride, block: tl.constexpr):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    lane = tl.arange(0, block)
    # Per lane so far: the largest x, its index, and the sums of exp(x - largest) and of
    # exp(x - largest) (x - largest).
    best = tl.full([block], float("-inf"), tl.float32)
    place = lane
    total = tl.zeros([block], tl.float32)
    moment = tl.zeros([block], tl.float32)
    for begin in range(0, size, block):
        at = begin + lane
        x = tl.load(logits + at, mask=at < size, other=float("-inf")).to(tl.float32)
        place = tl.where(x > best, at, place)
        top = tl.maximum(best, x)
        down = tl.where(best == float("-inf"), 0.0, best - top)
        below = tl.where(x == float("-inf"), 0.0, x - top)
        own = tl.where(x == float("-inf"), 0.0, tl.exp(below))
        shrink = tl.exp(down)
        moment = shrink * (moment + down * total) + own * below
        total = shrink * total + own
        best = top
    top = tl.max(best, axis=0)
    down = tl.where(best == float("-inf"), 0.0, best - top)
    moment = tl.sum(tl.exp(down) * (moment + down * total), axis=0)
    total = tl.sum(tl.exp(down) * total, axis=0)
    first = tl.min(tl.where(best == top, place, size), axis=0)  # the first of equals, as in torch
    tl.store(chosen + row, first.to(tl.int64))  # pyright: ignore[reportAttributeAccessIssue]
    tl.store(log_prob + row, -tl.log(total))
    mean = moment / total  # pyright: ignore[reportOperatorIssue]
    tl.store(entropy + row, tl.log(total) - mean)


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest tokens, their log-probabilities and the entropies, [row] each."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, size = logits.shape
    chosen = torch.empty(rows, dtype=torch.long, device=logits.device)
    log_prob, entropy = torch.empty(2, rows, dtype=torch.float32, device=logits.device)
    kernel: Any = _choose
    kernel[(rows,)](
        logits, chosen, log_prob, entropy, size, logits.stride(0), _BLOCK, num_warps=16
    )  # fmt: skip
    return chosen, log_prob, entropy


# --- Attention over keys in up to three segments, without joining them ---

# The prefix is held once for all rows, a trunk once for each question, and a row's own keys come
# one after the other as the model packs them. A program of the kernel takes the queries of one row
# that share a key head. Scores, softmax and sums are in float32; weights multiply the values in the
# model's dtype.


_LOG2E = 1.4426950408889634
# These differ from pass to pass; specializing on them would compile a kernel for each value.
_VARIABLE = ["front", "middle", "queries", "own", "bias_row", "bias_head", "bias_query"]


@triton.jit
def _meet(
    query, best, total, out, key, value, bias, length, begin, token_stride, scale,
    width: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr, exact: tl.constexpr,
    biased: tl.constexpr = True,  # pyright: ignore[reportArgumentType]
):  # fmt: skip
    """Update the running maximum, sum and values of an online softmax with one tile of keys."""
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
    valid = (token < count)[:, None]
    if width < block_d:
        valid = valid & (column < width)[None, :]
    # Large offsets are added to the base pointers: offsets within a row fit into 32 bits.
    place = token[:, None] * query_token + head[:, None] * width + column[None, :]
    tile = tl.load(query + start * query_token + place, mask=valid, other=0.0)
    # Rows of the bias are padded on the left.
    line = tl.where(token < count, queries - count + token, 0)
    bias += row.to(tl.int64) * bias_row
    beside = bias + (head * bias_head + line * bias_query)[:, None]
    best = tl.full([block_m], float("-inf"), tl.float32)
    total = tl.zeros([block_m], tl.float32)
    values = tl.zeros([block_m, block_d], tl.float32)
    front_key += key_head * front_head
    front_value += key_head * front_head
    # Nearly every row sees the whole of the few-shot examples, which hold most keys. A bias of
    # zeros for each query and key would take longer to load than the keys.
    if tl.load(open_front + row):
        for begin in range(0, front, block_n):
            best, total, values = _meet(
                tile, best, total, values, front_key, front_value, beside, front, begin,
                front_token, scale, width, block_n, block_d, exact,
                biased=False,  # pyright: ignore[reportArgumentType]
            )  # fmt: skip
    else:
        for begin in range(0, front, block_n):
            best, total, values = _meet(
                tile, best, total, values, front_key, front_value, beside, front, begin,
                front_token, scale, width, block_n, block_d, exact,
            )  # fmt: skip
    there = tl.load(rows + row) * middle_row + key_head * middle_head
    for begin in range(0, middle, block_n):
        best, total, values = _meet(
            tile, best, total, values, middle_key + there, middle_value + there, beside + front,
            middle, begin, middle_token, scale, width, block_n, block_d, exact,
        )  # fmt: skip
    there = start * own_token + key_head * width
    behind = front + middle + queries - count
    for begin in range(0, count * own, block_n):
        best, total, values = _meet(
            tile, best, total, values, own_key + there, own_value + there, beside + behind,
            count, begin, own_token, scale, width, block_n, block_d, exact,
        )  # fmt: skip
    values = values / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + start * query_token + place, values.to(out.dtype.element_ty), mask=valid)


def attend_segments(
    query: Tensor,
    segments: Segments,
    bias: Tensor,
    open_prefix: Tensor,
    layout: Layout,
    scale: float,
) -> Tensor:
    """Attention output [1, token, head, width] for packed queries [1, head, token, width].

    `open_prefix` [row]: whether the bias is 0 on the whole prefix; it is then not loaded there.
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
    # The fastest tiles of those tried on an H200. Rows are short, so many small programs at once
    # hide the wait for memory; with more than 32 keys at once heads of width 128 fall back by half.
    block_m, block_n, warps, stages = 16, 32, 4, 1
    if query.dtype != torch.float32 and queries * group <= 16:
        warps = 1
    elif query.dtype != torch.float32:
        block_m, stages = (64, 2) if width <= 128 else (32, 1)
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
