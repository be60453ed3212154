"""Attention over the prefix and a row's own keys, with any edge taken away.

transformers lets a model's attention be replaced by name; this is ours. It differs from the
stock ones in three ways. Tokens arrive packed, without padding, and are laid out in rows here
alone. What a row saw before comes from our `Memory`. And masks come from our `Layout`, so whether
the model would have passed a float, a boolean or no mask at all makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from anchorscope.engine.layout import Layout
from anchorscope.engine.memory import Memory, Pair

NAME = "anchorscope"
# Shown every block's attention weights [row, head, query, key] before they meet the values.
Watch = Callable[[Tensor], None]
# What architectures pass along that does not change which weights come out.
_HARMLESS = {
    "dropout", "is_causal", "position_ids", "position_embeddings", "use_cache", "past_key_values",
    "layer_past", "cache_position", "output_attentions", "output_hidden_states", "return_dict",
    "deterministic",
}  # fmt: skip


@dataclass(frozen=True)
class View:
    """What one block's attention needs to know of the pass: put into its keyword arguments."""

    layout: Layout
    block: int
    memory: Memory
    weights: bool  # whether somebody wants to see the attention weights
    watch: Watch | None = None


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
) -> tuple[Tensor, Tensor | None]:
    """The values [1, token, head, head width]; the weights [row, head, query, key] if wanted."""
    strange = [k for k, v in others.items() if v is not None and k not in _HARMLESS]
    if view is None or strange:
        reason = "the view of the pass did not arrive" if view is None else f"it uses {strange}"
        raise NotImplementedError(f"{type(module).__name__} cannot be read: {reason}.")
    layout = view.layout
    query, key, value = (_in_rows(layout, packed) for packed in (query, key, value))
    pair = view.memory.join(view.block, key, value)
    bias = layout.bias(view.block, sliding_window, query.dtype)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    kept = layout.kept(view.block, query.dtype)
    if view.weights or view.watch or kept is not None or softcap is not None:
        out, weights = _written_out(query * scale, pair, bias, softcap, kept, view.watch)
    else:
        # Faster on CPU and GPU alike than repeating the keys for grouped queries.
        grouped = query.shape[1] != key.shape[1]
        out = scaled_dot_product_attention(
            query, *pair, attn_mask=bias, scale=scale, enable_gqa=grouped
        )
        weights = None
    return layout.pack(out.transpose(1, 2)), weights


def _in_rows(layout: Layout, packed: Tensor) -> Tensor:
    """Packed things [1, head, token, head width] in their rows, [row, head, query, head width]."""
    return layout.unpack(packed.transpose(1, 2)).transpose(1, 2)


def _written_out(
    query: Tensor,
    pair: Pair,
    bias: Tensor,
    softcap: float | None,
    kept: Tensor | None,
    watch: Watch | None,
) -> tuple[Tensor, Tensor]:
    """Values [row, head, query, head width] and weights [row, head, query, key], step by step."""
    rows, heads, steps, width = query.shape
    key, value = pair
    groups = key.shape[1]
    # Grouped queries meet their key head without the keys being repeated.
    scores = query.reshape(rows, groups, -1, width) @ key.transpose(-1, -2)
    scores = scores.view(rows, heads, steps, -1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = torch.softmax(scores + bias, dim=-1, dtype=torch.float32).to(query.dtype)
    if kept is not None:
        weights = weights * kept
    if watch is not None:
        watch(weights)
    out = weights.reshape(rows, groups, -1, weights.shape[-1]) @ value
    return out.view(rows, heads, steps, value.shape[-1]), weights


AttentionInterface.register(NAME, attend)
