"""The kernels of attention and of the choice of a token, tried against torch's own functions."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from anchorscope.engine.choice import likeliest
from anchorscope.engine.fused.alike import alike, noise
from anchorscope.engine.layout import PAD, Layout
from anchorscope.engine.masks import Rule
from anchorscope.engine.memory import Forked

_FRONT, _COUNTS, _MIDDLE = 5, (3, 40), 4
_LATE = 30  # a position that the longer row alone has: there the prefix is not seen whole


def works(like: Tensor, heads: int, key_heads: int, width: int) -> bool:
    """Whether the kernel compiles and agrees, for heads of this width and the dtype of `like`."""
    tokens = sum(_COUNTS)
    query = noise(like, 1, heads, tokens, width)
    key, value = noise(like, 2, 1, key_heads, tokens, width)
    front = noise(like, 2, 1, key_heads, _FRONT, width)
    middle = noise(like, 2, 2, key_heads, _MIDDLE, width)
    rows = torch.tensor([1, 0], device=like.device)
    memory = partial(Forked, [(middle[0], middle[1])], rows, [(front[0], front[1])])
    layout = _layout(like.device)
    rule = Rule(lambda row, head, query, key: (key <= query) & ((query != _LATE) | (key > 1)))
    bias = layout.bias(0, rule, like.dtype)

    def torchs(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (layout.in_rows(of) for of in (query, key, value))
        pair = memory().join(0, key, value)
        out = scaled_dot_product_attention(query, *pair, attn_mask=bias, enable_gqa=True)
        return layout.pack(out.transpose(1, 2))

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        from anchorscope.engine.fused.segments import attend_segments  # needs Triton

        segments = memory(apart=True).segments(0, layout, key, value)
        open_prefix = layout.open_prefix(0, rule, like.dtype)
        return attend_segments(query, segments, bias, open_prefix, layout, width**-0.5)

    return alike(torchs, ours, query, key, value)


def chooses(like: Tensor) -> bool:
    """Whether the likeliest tokens are found: some tie, and some cannot be chosen."""
    logits = noise(like, 3, 9001)
    logits[1, [7, 8000]] = logits[1].max() + 1
    logits[2, ::2] = -torch.inf

    def ours(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from anchorscope.engine.fused.likeliest import likeliest as fused  # needs Triton

        return fused(logits)

    return alike(likeliest, ours, logits)


def _layout(device: torch.device) -> Layout:
    """Two rows of unlike length behind a prefix and a trunk, padded on the left."""
    begin = _FRONT + _MIDDLE
    lines = [range(begin, begin + count) for count in _COUNTS]
    padded = [[PAD] * (max(_COUNTS) - len(line)) + list(line) for line in lines]
    query_at = torch.tensor(padded, device=device)
    trunk = torch.arange(_FRONT, begin, device=device).expand(len(lines), -1)
    return Layout(query_at, torch.cat([trunk, query_at], dim=1), prefix_length=_FRONT)
