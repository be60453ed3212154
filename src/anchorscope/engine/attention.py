"""Attention over a shared prefix and a row's own keys, with any edge taken away.

transformers lets a model's attention be replaced by name; this is ours. It differs from the
stock ones in three ways. The keys of the few-shot prefix, the same for all rows, stand in memory
once and are met by one large matrix product instead of a copy per row. Grouped queries meet
their key head without the keys being repeated. And masks come from our `Layout` alone, so
whether the model would have passed a float, a boolean or no mask at all makes no difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from anchorscope.engine.layout import Layout

NAME = "anchorscope"
# What architectures pass along that does not change which weights come out.
_HARMLESS = {
    "attention_mask", "dropout", "is_causal", "position_ids", "position_embeddings", "use_cache",
    "past_key_values", "layer_past", "cache_position", "output_attentions", "output_hidden_states",
    "return_dict", "head_mask", "sliding_window", "deterministic",
}  # fmt: skip


@dataclass(frozen=True)
class View:
    """What one block's attention needs to know of the pass: put into its keyword arguments."""

    layout: Layout
    block: int
    prefix: tuple[Tensor, Tensor] | None  # keys and values [1, key head, prefix, head width]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    view: View | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """The attended values [row, query, head, head width] and the weights [row, head, query, key]."""
    strange = [k for k, v in others.items() if v is not None and k not in _HARMLESS]
    if view is None or strange:
        reason = "the view of the pass did not arrive" if view is None else f"it uses {strange}"
        raise NotImplementedError(f"{type(module).__name__} cannot be read: {reason}.")
    query = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = _scores(query, key, view.prefix)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + view.layout.bias(view.block, sliding_window, scores.dtype)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    kept = view.layout.kept(view.block, weights.dtype)
    if kept is not None:
        weights = weights * kept
    return _values(weights, value, view.prefix).transpose(1, 2), weights


def _scores(query: Tensor, key: Tensor, prefix: tuple[Tensor, Tensor] | None) -> Tensor:
    """Scores [row, head, query, prefix + own key]."""
    rows, heads, steps, width = query.shape
    groups = key.shape[1]
    grouped = query.reshape(rows, groups, -1, width)
    own = grouped @ key.transpose(-1, -2)
    if prefix is None:
        return own.view(rows, heads, steps, -1)
    flat = grouped.transpose(0, 1).reshape(groups, -1, width)
    shared = flat @ prefix[0][0].transpose(-1, -2)
    shared = shared.view(groups, rows, own.shape[2], -1).transpose(0, 1)
    return torch.cat([shared, own], dim=-1).view(rows, heads, steps, -1)


def _values(weights: Tensor, value: Tensor, prefix: tuple[Tensor, Tensor] | None) -> Tensor:
    """Values [row, head, query, head width]."""
    rows, heads, steps, keys = weights.shape
    groups, width = value.shape[1], value.shape[-1]
    grouped = weights.reshape(rows, groups, -1, keys)
    length = keys - value.shape[2]
    out = grouped[..., length:] @ value
    if prefix is not None:
        flat = grouped[..., :length].transpose(0, 1).reshape(groups, -1, length)
        shared = (flat @ prefix[1][0]).view(groups, rows, -1, width)
        out = out + shared.transpose(0, 1)
    return out.view(rows, heads, steps, width)


AttentionInterface.register(NAME, attend)
