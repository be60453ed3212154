"""Replacement for transformers' attention in which any edge can be cut or reweighted.

transformers lets a model's attention be replaced by name; this is ours. It differs from the
stock ones in three ways. Tokens arrive packed, without padding, and are laid out in rows here
alone. Earlier keys and values come from our `KVCache`. Masks are made by our `Layout` from the
model's own rule about positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from anchorscope.engine.layout import NAME, KVCache, Layout, UnsupportedModel, require_rule

_WHERE = "_attn_implementation_internal"
# Receives every block's attention weights [row, head, query, key] before they weight the values.
WeightObserver = Callable[[Tensor], None]
# Arguments of architectures that do not change the attention weights. The window is in the
# rule already; stock attention reads it only where it is given no mask.
_HARMLESS = {
    "dropout", "is_causal", "position_ids", "position_embeddings", "use_cache", "past_key_values",
    "layer_past", "cache_position", "output_attentions", "output_hidden_states", "return_dict",
    "deterministic", "sliding_window", "output_router_logits", "logits_to_keep", "layer_idx",
}  # fmt: skip


@dataclass(frozen=True)
class WindowSlots:
    """Cuts in windows of `width` blocks in one pass: clean rows, then a copy of them per slot.

    Before each block one slot is reset to the clean rows: its window begins there. The clean rows
    and every slot have the same number of packed `tokens`.
    """

    tokens: int
    width: int

    def begin(self, block: int, hidden: Tensor) -> Tensor:
        """The input of a block (from 0), [1, token, width], with the slot that begins reset."""
        return self._cleaned(hidden, [1 + block % self.width], dim=1)

    def keys(self, block: int, donor: int, packed: Tensor) -> Tensor:
        """The donor's packed keys or values [1, key head, token, width] as a block sees them.

        A slot whose window began after the donor ran must find the clean rows' keys there.
        """
        begun = range(max(donor + 1, block - self.width + 1), block + 1)
        return self._cleaned(packed, [1 + start % self.width for start in begun], dim=2)

    def _cleaned(self, packed: Tensor, slots: Sequence[int], dim: int) -> Tensor:
        """Copy a packed tensor and overwrite these slots with the clean rows."""
        packed = packed.clone()
        clean = packed.narrow(dim, 0, self.tokens)
        for slot in slots:
            packed.narrow(dim, self.tokens * slot, self.tokens).copy_(clean)
        return packed


@dataclass
class Pass:
    """State of the current pass, shared by hooks and attention."""

    layout: Layout
    memory: KVCache
    kept: Tensor  # the packed tokens whose states are kept
    watch: WeightObserver | None = None
    slots: WindowSlots | None = None
    depth: int | None = None  # the block, from 1, after which the pass ends
    block: int = -1  # the block that runs now, from 0
    called: list[int] = field(default_factory=list)  # the blocks whose attention was ours
    states: list[Tensor] = field(default_factory=list)


CURRENT: ContextVar[Pass | None] = ContextVar("the pass under way", default=None)


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
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend with the pass's edges cut: output [1, token, head, head width], weights or None."""
    now = CURRENT.get()
    strange = [k for k, v in others.items() if v is not None and k not in _HARMLESS]
    if now is None or strange:
        reason = "no pass of ours is under way" if now is None else f"it uses {strange}"
        raise UnsupportedModel(f"{type(module).__name__} cannot be read: {reason}")
    layout, memory, block = now.layout, now.memory, now.block
    if block in now.called:
        raise UnsupportedModel("a block attends more than once, and one cut would not be all of it")
    now.called.append(block)
    donor = _donor(module)
    if donor is not None and now.slots is not None:
        key, value = (now.slots.keys(block, donor, packed) for packed in (key, value))
    rule = require_rule(attention_mask, module)
    bias = layout.bias(block, rule, query.dtype).to(query.device)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    kept = layout.kept(block, query.dtype)
    plain = all(option is None for option in (now.watch, kept, softcap, s_aux))
    if plain and memory.segmented and value.shape[-1] == key.shape[-1]:
        from anchorscope.engine.kernels import attend_segments  # needs Triton

        segments = memory.segments(block, layout, key, value)
        open_prefix = layout.open_prefix(block, rule, query.dtype)
        return attend_segments(query, segments, bias, open_prefix, layout, scale), None
    query, key, value = (layout.in_rows(packed) for packed in (query, key, value))
    key, value = memory.join(block, key, value)
    if plain:
        grouped = query.shape[1] != key.shape[1]  # faster than repeating the keys
        out = scaled_dot_product_attention(
            query, key, value, attn_mask=bias, scale=scale, enable_gqa=grouped
        )
        return layout.pack(out.transpose(1, 2)), None
    rows, heads, steps, width = query.shape
    # Written out; grouped queries use their key head without the keys being repeated.
    scores = (query * scale).reshape(rows, key.shape[1], -1, width) @ key.transpose(-1, -2)
    scores = scores.view(rows, heads, steps, -1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = _softmax(scores + bias, s_aux).to(query.dtype)
    if kept is not None:
        weights = weights * kept.to(weights.device)
    if now.watch is not None:
        now.watch(weights)
    out = weights.reshape(rows, key.shape[1], -1, weights.shape[-1]) @ value
    out = out.view(rows, heads, steps, value.shape[-1])
    return layout.pack(out.transpose(1, 2)), weights


def _donor(module: nn.Module) -> int | None:
    """The earlier block whose keys and values this one uses, from 0; None where it has its own."""
    if not getattr(module, "is_kv_shared_layer", False):
        return None
    config: Any = module.config
    kinds = config.layer_types
    own = kinds[: len(kinds) - config.num_kv_shared_layers]
    return max(block for block, kind in enumerate(own) if kind == kinds[module.layer_idx])


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the keys; a sink [head] takes a share of the weight and has no value."""
    if sinks is None:
        return torch.softmax(scores, dim=-1, dtype=torch.float32)
    column = sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1, dtype=torch.float32)[..., :-1]


AttentionInterface.register(NAME, attend)


@contextmanager
def attention_named(lm: nn.Module, name: str) -> Iterator[None]:
    """Switch a model to the attention of a name, in evaluation mode, until the block ends."""
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
