"""Models whose attention is written out in the forward pass of its module: Bloom, MPT, Falcon.

Their projections run as they are; only what lies between them is ours. Bloom and MPT tell
positions by a bias on the scores that falls with the distance (ALiBi). It is the same for every
query but for a constant, which the softmax takes away, so a table by the key's position is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anchorscope.engine.attention import attend
from anchorscope.engine.masks import NotUnderstood


def _bloom(module: Any) -> Callable[..., Any]:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    def forward(
        hidden_states: Tensor, residual: Tensor, *, attention_mask: Any, **others: Any
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value = module._reshape(module.query_key_value(hidden_states))

        def alibi(length: int) -> Tensor:
            there = torch.ones(1, length, dtype=torch.long, device=hidden_states.device)
            return build_alibi_tensor(there, module.num_heads, hidden_states.dtype)[:, 0]

        how = {"scaling": module.inv_norm_factor, "alibi": alibi}
        out, weights = attend(module, query, key, value, attention_mask, **how)
        return residual + module.dense(out.flatten(2)), weights

    return forward


def _mpt(module: Any) -> Callable[..., Any]:
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    def forward(
        hidden_states: Tensor, *, attention_mask: Any, **others: Any
    ) -> tuple[Tensor, Tensor | None]:
        mixed = module.Wqkv(hidden_states)
        if module.clip_qkv:
            mixed = mixed.clamp(min=-module.clip_qkv, max=module.clip_qkv)
        heads = (-1, module.head_dim)
        query, key, value = (p.unflatten(-1, heads).transpose(1, 2) for p in mixed.chunk(3, dim=2))

        def alibi(length: int) -> Tensor:
            table = build_mpt_alibi_tensor(module.n_heads, length, device=hidden_states.device)
            return table[:, 0]

        how = {"scaling": module.softmax_scale, "alibi": alibi}
        out, weights = attend(module, query, key, value, attention_mask, **how)
        return module.out_proj(out.flatten(2)), weights

    return forward


def _falcon(module: Any) -> Callable[..., Any]:
    from transformers.models.falcon.modeling_falcon import apply_rotary_pos_emb

    if module.config.alibi:
        raise NotUnderstood(
            "Falcon with ALiBi adds its bias twice in transformers' eager attention and once in "
            "its fused one, so there is no stock attention to agree with"
        )

    def forward(
        hidden_states: Tensor,
        *,
        attention_mask: Any,
        position_embeddings: tuple[Tensor, Tensor],
        **others: Any,
    ) -> tuple[Tensor, Tensor | None]:
        split = module._split_heads(module.query_key_value(hidden_states))
        query, key, value = (part.transpose(1, 2) for part in split)
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        out, weights = attend(module, query, key, value, attention_mask)
        return module.dense(out.flatten(2)), weights

    return forward


OURS: dict[str, Callable[[nn.Module], Any]] = {
    "BloomAttention": _bloom,
    "MptAttention": _mpt,
    "FalconAttention": _falcon,
}
