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


@triton.jit
def _gate(gate, up, out, count, gelu: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    there, kind = at < count, out.dtype.element_ty
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
    kernel[(triton.cdiv(count, _BLOCK),)](gate, up, out, count, act == "gelu", _BLOCK, num_warps=8)
    return out


@triton.jit
def _norm(of, weight, out, eps, width: tl.constexpr, padded: tl.constexpr, more: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, padded)
    there, kind = at < width, out.dtype.element_ty
    x = tl.load(of + row * width + at, mask=there, other=0.0).to(tl.float32)
    scale = tl.load(weight + at, mask=there, other=0.0).to(tl.float32)
    x = x * (1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps))
    # Llama rounds before it scales; Gemma scales by one more than the weight, and rounds then.
    x = x * (1.0 + scale) if more else x.to(kind).to(tl.float32) * scale
    tl.store(out + row * width + at, x.to(kind), mask=there)


def normed(of: Tensor, weight: Tensor, eps: float, *, more: bool) -> Tensor:
    """The RMS norm over the last dimension, scaled by the weight, or by one more than it."""
    of = of.contiguous()
    out, width = torch.empty_like(of), of.shape[-1]
    kernel: Any = _norm
    sizes = (width, triton.next_power_of_2(width), more)
    kernel[(of.numel() // width,)](of, weight, out, eps, *sizes, num_warps=4)
    return out


@triton.jit
def _rotate(
    of, cos, sin, out, heads: tl.constexpr, width: tl.constexpr, padded: tl.constexpr,
    half: tl.constexpr,
):  # fmt: skip
    token, kind = tl.program_id(0).to(tl.int64), out.dtype.element_ty
    head, at = tl.arange(0, padded)[:, None], tl.arange(0, half)[None, :]
    there = (head < heads) & (at < width // 2)
    angle = tl.arange(0, half)
    known = angle < width // 2
    low, high = token * width + angle, token * width + width // 2 + angle
    place = token * heads * width + head * width + at
    x = tl.load(of + place, mask=there).to(tl.float32)
    y = tl.load(of + place + width // 2, mask=there).to(tl.float32)
    cos_x = tl.load(cos + low, mask=known).to(tl.float32)[None, :]
    sin_x = tl.load(sin + low, mask=known).to(tl.float32)[None, :]
    cos_y = tl.load(cos + high, mask=known).to(tl.float32)[None, :]
    sin_y = tl.load(sin + high, mask=known).to(tl.float32)[None, :]
    first = (x * cos_x).to(kind).to(tl.float32) - (y * sin_x).to(kind).to(tl.float32)
    second = (y * cos_y).to(kind).to(tl.float32) + (x * sin_y).to(kind).to(tl.float32)
    tl.store(out + place, first.to(kind), mask=there)
    tl.store(out + place + width // 2, second.to(kind), mask=there)


def rotated(of: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys [1, head, token, width] turned by angles [1, token, width], halves paired."""
    rows = of.transpose(1, 2).contiguous()
    _, tokens, heads, width = rows.shape
    out = torch.empty_like(rows)
    sizes = (heads, width, triton.next_power_of_2(heads), triton.next_power_of_2(width // 2))
    kernel: Any = _rotate
    kernel[(tokens,)](rows, cos.contiguous(), sin.contiguous(), out, *sizes, num_warps=4)
    return out.transpose(1, 2)
