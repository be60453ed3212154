"""Holds every decoder of the installed transformers against stock attention; writes docs/models.md.

    python scripts/architectures.py [--only llama,gptj] [--write docs/models.md]
"""

from __future__ import annotations

import argparse
import inspect
import sys
import traceback
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as MODELS

WIDTH, HEADS, BLOCKS, VOCABULARY = 48, 4, 4, 300
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": BLOCKS,
    "num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": 12,
    "intermediate_size": 64, "max_position_embeddings": 512, "initializer_range": 0.2,
    "sliding_window": 7, "attention_chunk_size": 7, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "n_group": 1, "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 12, "first_k_dense_replace": 1, "is_decoder": True,
    "use_cache": False, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8,
    "n_shared_experts": 1, "query_pre_attn_scalar": 12, "mup_dim_model_base": 16,
    "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4, "rope_head_dim": 8, "qk_head_dim": 16,
    "dim_model_base": 16, "laurel_rank": 4, "num_experts_shared": 1, "layer_types": None,
}  # fmt: skip


def config_of(kind: str) -> Any:
    cls = CONFIG_MAPPING[kind]
    known = set(inspect.signature(cls.__init__).parameters) | set(getattr(cls, "attribute_map", {}))
    try:
        known |= set(cls().to_dict())
    except Exception:
        pass
    return cls(**{name: value for name, value in SIZES.items() if name in known and value is not None})


def tiny(kind: str) -> Any:
    torch.manual_seed(0)
    config = config_of(kind)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > 20_000_000:
        raise ValueError(f"{size} weights")
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


if __name__ == "__main__":
    only = sys.argv[1].split(",") if len(sys.argv) > 1 else list(NAMES)
    for kind in only:
        try:
            lm = tiny(kind)
            n = sum(p.numel() for p in lm.parameters())
            with torch.no_grad():
                lm(torch.randint(3, 290, (1, 20)))
            print("ok", kind, type(lm).__name__, n)
        except BaseException as e:
            tb = traceback.extract_tb(e.__traceback__)[-1]
            print("BUILD", kind, type(e).__name__, str(e)[:150].replace("\n", " "), tb.filename.split("/")[-1], tb.lineno)
