"""The kernels, in Triton: each reads its input once and writes its output once.

They round where the models' own code rounds. Some models (Qwen2.5) have keys so large that one
rounding less gives other attention, and other answers.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

Act = Literal["silu", "gelu"]
_BLOCK = 2048


@triton.jit(do_not_specialize=["count"])
def _gate(gate, up, out, count, even: tl.constexpr, gelu: tl.constexpr, block: tl.constexpr):
    begin = tl.program_id(0).to(tl.int64) * block  # what follows fits into 32 bits
    gate, up, out = gate + begin, up + begin, out + begin
    at = tl.arange(0, block)
    there = at < block if even else at < count - begin
    kind = out.dtype.element_ty
    x = tl.load(gate + at, mask=there).to(tl.float32)
    y = tl.load(up + at, mask=there).to(tl.float32)
    # Both activations are x times a sigmoid; gelu is the one with tanh.
    z = 1.5957691216057308 * (x + 0.044715 * x * x * x) if gelu else x
    active = (x * tl.sigmoid(z)).to(kind).to(tl.float32)
    tl.store(out + at, (active * y).to(kind), mask=there)


def gated(gate: Tensor, up: Tensor, act: Act) -> Tensor:
    """act(gate) * up, of any shape."""
    gate, up = gate.contiguous(), up.contiguous()
    out, count = torch.empty_like(gate), gate.numel()
    kernel: Any = _gate
    grid, even = (triton.cdiv(count, _BLOCK),), count % _BLOCK == 0
    kernel[grid](gate, up, out, count, even, act == "gelu", _BLOCK, num_warps=8)
    return out


@triton.jit(do_not_specialize=["count"])
def _norm(
    of, weight, out, count, eps, width: tl.constexpr, padded: tl.constexpr, rows: tl.constexpr,
    more: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)[:, None]
    column = tl.arange(0, padded)
    inside = (row < count) & (column < width)[None, :]
    at = row * width + column[None, :]
    kind = out.dtype.element_ty
    x = tl.load(of + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    x = x * (1.0 / tl.sqrt(tl.sum(x * x, axis=1) / width + eps))[:, None]
    # Llama rounds before it scales; Gemma scales by one more than the weight, and rounds then.
    x = x * (1.0 + scale) if more else x.to(kind).to(tl.float32) * scale
    tl.store(out + at, x.to(kind), mask=inside)


def normed(of: Tensor, weight: Tensor, eps: float, *, more: bool) -> Tensor:
    """The RMS norm over the last dimension, scaled by the weight, or by one more than it."""
    of = of.contiguous()
    out, width = torch.empty_like(of), of.shape[-1]
    count, padded = of.numel() // width, triton.next_power_of_2(width)
    rows = max(1, _BLOCK // padded)  # heads are narrow: one row each would be too little work
    kernel: Any = _norm
    grid = (triton.cdiv(count, rows),)
    kernel[grid](of, weight, out, count, eps, width, padded, rows, more, num_warps=4)
    return out


@triton.jit
def _turn(
    of, out, token, cos_x, sin_x, cos_y, sin_y, heads: tl.constexpr, width: tl.constexpr,
    padded: tl.constexpr, half: tl.constexpr,
):  # fmt: skip
    """The heads of one token, turned."""
    kind = out.dtype.element_ty
    head = tl.arange(0, padded)[:, None]
    at = tl.arange(0, half)[None, :]
    there = (head < heads) & (at < width // 2)
    place = token * heads * width + head * width + at
    x = tl.load(of + place, mask=there).to(tl.float32)
    y = tl.load(of + place + width // 2, mask=there).to(tl.float32)
    first = (x * cos_x).to(kind).to(tl.float32) - (y * sin_x).to(kind).to(tl.float32)
    second = (y * cos_y).to(kind).to(tl.float32) + (x * sin_y).to(kind).to(tl.float32)
    tl.store(out + place, first.to(kind), mask=there)
    tl.store(out + place + width // 2, second.to(kind), mask=there)


@triton.jit
def _rotate(
    query, key, cos, sin, query_out, key_out, heads: tl.constexpr, key_heads: tl.constexpr,
    width: tl.constexpr, padded: tl.constexpr, key_padded: tl.constexpr, half: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    angle = tl.arange(0, half)
    known = angle < width // 2
    low = token * width + angle
    high = low + width // 2
    cos_x = tl.load(cos + low, mask=known).to(tl.float32)[None, :]
    sin_x = tl.load(sin + low, mask=known).to(tl.float32)[None, :]
    cos_y = tl.load(cos + high, mask=known).to(tl.float32)[None, :]
    sin_y = tl.load(sin + high, mask=known).to(tl.float32)[None, :]
    _turn(query, query_out, token, cos_x, sin_x, cos_y, sin_y, heads, width, padded, half)
    _turn(key, key_out, token, cos_x, sin_x, cos_y, sin_y, key_heads, width, key_padded, half)


def rotated(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys [1, head, token, width] turned by angles [1, token, width], halves paired.

    Both in one kernel: a step of decoding waits for Python, and each start of a kernel is Python.
    """
    query, key = (of.transpose(1, 2).contiguous() for of in (query, key))
    _, tokens, heads, width = query.shape
    key_heads, power = key.shape[2], triton.next_power_of_2
    outs = torch.empty_like(query), torch.empty_like(key)
    sizes = (heads, key_heads, width, power(heads), power(key_heads), power(width // 2))
    kernel: Any = _rotate
    angles = cos.contiguous(), sin.contiguous()
    kernel[(tokens,)](query, key, *angles, *outs, *sizes, num_warps=4)
    return outs[0].transpose(1, 2), outs[1].transpose(1, 2)
