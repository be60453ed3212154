"""Attention over the prefix and a row's own keys, with any edge taken away.

transformers lets a model's attention be replaced by name; this is ours. It differs from the
stock ones in three ways. Tokens arrive packed, without padding, and are laid out in rows here
alone. What a row saw before comes from our `Memory`. And masks are made by our `Layout` from the
model's own rule about positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from anchorscope.engine.layout import Layout
from anchorscope.engine.masks import NAME, NotUnderstood, Rule, checked
from anchorscope.engine.memory import Forked, Growing, Memory, Pair

_WHERE = "_attn_implementation_internal"
# Shown every block's attention weights [row, head, query, key] before they meet the values.
Watch = Callable[[Tensor], None]
# What architectures pass along that does not change which weights come out. The window is in the
# rule already; stock attention reads it only where it is given no mask.
_HARMLESS = {
    "dropout", "is_causal", "position_ids", "position_embeddings", "use_cache", "past_key_values",
    "layer_past", "cache_position", "output_attentions", "output_hidden_states", "return_dict",
    "deterministic", "sliding_window", "output_router_logits", "logits_to_keep", "layer_idx",
}  # fmt: skip


class SetBack(Protocol):
    """Gives the rows of a window that begins at a block the clean rows' states."""

    def __call__(self, block: int, hidden: Tensor) -> Tensor:
        """The packed input [1, token, width] that a block (from 0) gets."""
        ...

    def keys(self, block: int, donor: int, packed: Tensor) -> Tensor:
        """A donor block's packed keys or values [1, key head, token, width], as seen here."""
        ...


@dataclass
class View:
    """The pass under way, as its blocks see it."""

    layout: Layout
    memory: Memory
    weights: bool  # whether the attention weights are written out
    watch: Watch | None = None
    beside: Watch | None = None  # shown the weights too; the values come as if nobody had looked
    set_back: SetBack | None = None
    block: int = -1  # the block that runs now, from 0
    called: list[int] = field(default_factory=list)  # the blocks whose attention was ours


class _Asked(NamedTuple):
    """What a block asks for: packed queries, keys and values, and how its scores are made."""

    query: Tensor  # [1, head, token, head width]
    key: Tensor
    value: Tensor
    bias: Tensor  # [row, 1 or head, query, key]
    scale: float
    rule: Rule

    def in_rows(self, layout: Layout) -> list[Tensor]:
        """Queries, keys and values in their rows, [row, head, query, head width]."""
        return [layout.in_rows(packed) for packed in (self.query, self.key, self.value)]


CURRENT: ContextVar[View | None] = ContextVar("the pass under way", default=None)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    alibi: Callable[[int], Tensor] | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The values [1, token, head, head width]; the weights [row, head, query, key] if wanted.

    `alibi` gives what is added to the scores by the key's position, [head, position], of so many.
    """
    view = CURRENT.get()
    strange = [k for k, v in others.items() if v is not None and k not in _HARMLESS]
    if view is None or strange:
        reason = "no pass of ours is under way" if view is None else f"it uses {strange}"
        raise NotUnderstood(f"{type(module).__name__} cannot be read: {reason}")
    layout, block = view.layout.on(query.device), view.block
    if block in view.called:
        raise NotUnderstood("a block attends more than once, and one cut would not be all of it")
    view.called.append(block)
    donor = _donor(module)
    if donor is not None and view.set_back is not None:
        key, value = (view.set_back.keys(block, donor, packed) for packed in (key, value))
    rule = checked(attention_mask, module)
    bias = layout.bias(block, rule, query.dtype)
    if alibi is not None:
        bias = bias + layout.by_key(alibi(layout.keys))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    kept = layout.kept(block, query.dtype)
    special = any(of is not None for of in (kept, softcap, s_aux, alibi))
    watch = view.watch or view.beside
    asked = _Asked(query, key, value, bias, scale, rule)
    if not (view.weights or view.watch or special):
        return _fused(view, layout, asked), None
    query, key, value = asked.in_rows(layout)
    pair = view.memory.join(block, key, value)
    out, weights = _written_out(query * scale, pair, bias, softcap, s_aux, kept, watch)
    return layout.pack(out.transpose(1, 2)), weights


def _fused(view: View, layout: Layout, asked: _Asked) -> Tensor:
    """The values [1, token, head, head width] by a kernel that writes no weights out."""
    (query, key, value, bias, scale, rule), memory = asked, view.memory
    same_width = value.shape[-1] == key.shape[-1]
    if isinstance(memory, Growing | Forked) and memory.apart and same_width:
        from anchorscope.engine.fused.segments import attend_segments  # needs Triton

        segments = memory.segments(view.block, layout, key, value)
        open_prefix = layout.open_prefix(view.block, rule, query.dtype)
        return attend_segments(query, segments, bias, open_prefix, layout, scale)
    query, key, value = asked.in_rows(layout)
    pair = memory.join(view.block, key, value)
    if view.beside is not None:
        view.beside(_weights(query * scale, pair[0], bias))
    # Faster on CPU and GPU alike than repeating the keys for grouped queries.
    out = scaled_dot_product_attention(
        query, *pair, attn_mask=bias, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return layout.pack(out.transpose(1, 2))


def _donor(module: nn.Module) -> int | None:
    """The earlier block whose keys and values this one uses, from 0; None where it has its own."""
    if not getattr(module, "is_kv_shared_layer", False):
        return None
    config: Any = module.config
    kinds = config.layer_types
    own = kinds[: len(kinds) - config.num_kv_shared_layers]
    return max(block for block, kind in enumerate(own) if kind == kinds[module.layer_idx])


def _written_out(
    query: Tensor,
    pair: Pair,
    bias: Tensor,
    softcap: float | None,
    sinks: Tensor | None,
    kept: Tensor | None,
    watch: Watch | None,
) -> tuple[Tensor, Tensor]:
    """Values [row, head, query, head width] and weights [row, head, query, key], step by step."""
    key, value = pair
    weights = _weights(query, key, bias, softcap, sinks)
    if kept is not None:
        weights = weights * kept
    if watch is not None:
        watch(weights)
    out = weights.reshape(len(key), key.shape[1], -1, weights.shape[-1]) @ value
    return out.view(*query.shape[:3], value.shape[-1]), weights


def _weights(
    query: Tensor,
    key: Tensor,
    bias: Tensor,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The weights [row, head, query, key] of queries that are scaled already."""
    rows, heads, steps, width = query.shape
    # Grouped queries meet their key head without the keys being repeated.
    scores = query.reshape(rows, key.shape[1], -1, width) @ key.transpose(-1, -2)
    scores = scores.view(rows, heads, steps, -1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    return _softmax(scores + bias, sinks).to(query.dtype)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Weights over the keys; a sink [head] takes its share of every row and gives no value."""
    if sinks is None:
        return torch.softmax(scores, dim=-1, dtype=torch.float32)
    column = sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1, dtype=torch.float32)[..., :-1]


AttentionInterface.register(NAME, attend)


@contextmanager
def attention_named(lm: nn.Module, name: str) -> Iterator[None]:
    """The model in evaluation, with the attention of that name; all is put back as it was."""
    configs = [module.config for module in lm.modules() if hasattr(module, "config")]
    # Each config once; the parts of a model may have their own, with another attention each.
    names = {id(c): (c, getattr(c, _WHERE)) for c in configs if hasattr(c, _WHERE)}
    training = [(module, module.training) for module in lm.modules()]
    try:
        lm.eval()
        for config, _ in names.values():
            # Set directly: the public setter refuses what it does not know.
            setattr(config, _WHERE, name)
        yield
    finally:
        for config, before in names.values():
            setattr(config, _WHERE, before)
        for module, flag in training:
            module.training = flag
