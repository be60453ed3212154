"""The kernels, in Triton: each reads its input once and writes its output once."""

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
    there = at < count
    x = tl.load(gate + at, mask=there).to(tl.float32)
    y = tl.load(up + at, mask=there).to(tl.float32)
    # Both activations are x times a sigmoid; gelu is the one with tanh.
    z = 1.5957691216057308 * (x + 0.044715 * x * x * x) if gelu else x
    tl.store(out + at, (x * tl.sigmoid(z) * y).to(out.dtype.element_ty), mask=there)


def gated(gate: Tensor, up: Tensor, act: Act) -> Tensor:
    """act(gate) * up, of any shape."""
    gate, up = gate.contiguous(), up.contiguous()
    out, count = torch.empty_like(gate), gate.numel()
    kernel: Any = _gate
    kernel[(triton.cdiv(count, _BLOCK),)](gate, up, out, count, act == "gelu", _BLOCK, num_warps=8)
    return out


@triton.jit
def _rotate(
    of, cos, sin, out, heads: tl.constexpr, width: tl.constexpr, padded: tl.constexpr,
    half: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
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
    kind = out.dtype.element_ty
    tl.store(out + place, (x * cos_x - y * sin_x).to(kind), mask=there)
    tl.store(out + place + width // 2, (y * cos_y + x * sin_y).to(kind), mask=there)


def rotated(of: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys [1, head, token, width] turned by angles [1, token, width], halves paired."""
    rows = of.transpose(1, 2).contiguous()
    _, tokens, heads, width = rows.shape
    out = torch.empty_like(rows)
    sizes = (heads, width, triton.next_power_of_2(heads), triton.next_power_of_2(width // 2))
    kernel: Any = _rotate
    kernel[(tokens,)](rows, cos.contiguous(), sin.contiguous(), out, *sizes, num_warps=4)
    return out.transpose(1, 2)
