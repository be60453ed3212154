"""FlexAttention of vLLM with one more rule: the edges that a request cuts or reweights.

The rule is a score function, which vLLM's FlexAttention calls with the positions of query and key
inside their request. It looks the request of a query up in tables that `RECORDER` fills for each
step, so requests with different cuts share a batch. Batches without a cut have no rule.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backends.flex_attention import (
    FlexAttentionBackend,
    FlexAttentionImpl,
    FlexAttentionMetadata,
    FlexAttentionMetadataBuilder,
)

from anchorscope.engine_vllm.recorder import RECORDER, EdgeTables


class KnockoutBackend(FlexAttentionBackend):
    """vLLM's FlexAttention with the rule of this module."""

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size >= 16  # narrower ones fail when the kernel is compiled

    @staticmethod
    def get_impl_cls() -> type[FlexAttentionImpl]:
        return KnockoutImpl

    @staticmethod
    def get_builder_cls() -> type[FlexAttentionMetadataBuilder]:
        return KnockoutBuilder


class KnockoutBuilder(FlexAttentionMetadataBuilder):
    """Build the metadata of a step, with the rule where a request of the step has a cut."""

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> FlexAttentionMetadata:
        built = super().build(common_prefix_len, common_attn_metadata, fast_build)
        tables = RECORDER.begin_step(common_attn_metadata)
        if tables is not None:
            assert built.doc_ids is not None
            built.score_mod = edge_rule(tables, built.doc_ids)
            built.transformed_score_mod = built.get_transformed_score_mod()
        return built


def edge_rule(tables: EdgeTables, request_of: Tensor) -> Any:
    """The rule of one step as a score function; `request_of` [token] is the row in the tables."""
    is_key, is_query = tables.is_key, tables.is_query
    active, added = tables.active, tables.added

    def rule(
        score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, *, physical_q: Tensor
    ) -> Tensor:
        row = request_of[physical_q]
        changed = is_key[row, k] & is_query[row, q] & active[row]
        return torch.where(changed, score + added[row], score)

    return rule


class KnockoutImpl(FlexAttentionImpl):
    """Attention of one block: tells the rule which block it is, and measures attention mass."""

    def forward(
        self,
        layer: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: FlexAttentionMetadata,
        output: Tensor,
        *scales: Any,
        **options: Any,
    ) -> Tensor:
        block = extract_layer_index(layer.layer_name)
        RECORDER.begin_block(block)
        out = super().forward(
            layer, query, key, value, kv_cache, attn_metadata, output, *scales, **options
        )
        if attn_metadata is not None and RECORDER.mass_rows:
            self._add_mass(query, kv_cache, attn_metadata)
        return out

    def _add_mass(self, query: Tensor, kv_cache: Tensor, metadata: FlexAttentionMetadata) -> None:
        """Add this block's attention from chosen queries to each position, mean over heads."""
        for token, row, mass in RECORDER.mass_rows:
            length = mass.shape[0]
            pages = metadata.block_table[row, : -(-length // metadata.block_size)].long()
            keys = kv_cache[:, 0][pages].flatten(0, 1)[:length]  # [position, key head, width]
            own = query[token].view(self.num_kv_heads, self.num_queries_per_kv, self.head_size)
            scores = torch.einsum("ghd,kgd->ghk", own.float(), keys.float()) * self.scale
            if self.sliding_window is not None:
                scores[..., : max(0, length - self.sliding_window)] = -torch.inf
            mass += scores.softmax(dim=-1).mean(dim=(0, 1))
