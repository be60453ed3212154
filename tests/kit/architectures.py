"""A tiny random model of every decoder that transformers knows, from its config alone."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

BLOCKS, HEADS, VOCABULARY = 4, 4, 300
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "num_hidden_layers": BLOCKS,
    "num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": 12,
    "intermediate_size": 64, "max_position_embeddings": 512, "initializer_range": 0.2,
    "init_std": 0.2, "sliding_window": 7, "attention_chunk_size": 7, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "is_decoder": True, "use_cache": False,
    # Experts
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1,
    # Low-rank keys and values
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    # Decoders of encoder-decoder models
    "decoder_layers": BLOCKS, "decoder_attention_heads": HEADS, "decoder_ffn_dim": 64,
    "encoder_layers": BLOCKS, "encoder_attention_heads": HEADS, "encoder_ffn_dim": 64,
    "num_decoder_layers": BLOCKS, "num_decoder_attention_heads": HEADS,
    "add_cross_attention": False,
    # Others
    "query_pre_attn_scalar": 12, "vocab_size_per_layer_input": VOCABULARY, "ffn_dim": 64,
    "hidden_size_per_layer_input": 8, "rotary_dim": 8, "num_kv_shared_layers": 2,
    "max_seq_len": 512, "embedding_size": 48,
}  # fmt: skip
_LATENT = {"num_key_value_heads": HEADS, "head_dim": None}
_BY_KIND: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite",
         "glm_moe_dsa", "minicpm3", "youtu", "longcat_flash", "kimi_linear", "bailing_hybrid"),
        _LATENT,
    ),
    "longcat_flash": {**_LATENT, "num_layers": 2, "expert_ffn_hidden_size": 32,
                      "ffn_hidden_size": 64, "n_routed_experts": 4, "zero_expert_num": 2,
                      "moe_topk": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 7},
    "stablelm": {"partial_rotary_factor": 0.5},
    "gemma3n_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "gemma4_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "gemma4_unified_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "xlnet": {"d_head": 12}, "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 12},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 12},
    "falcon_h1": {"mamba_d_ssm": 96, "mamba_n_heads": 8, "mamba_d_head": 12, "mamba_d_state": 16},
    "mamba2": {"num_heads": 8, "head_dim": 12},
    "zamba2": {"layer_types": None, "layers_block_type": ["mamba", "hybrid"] * 2},
}  # fmt: skip
# Models of several parts: their decoder is in the list under a name of its own.
COMPOSITE = {
    "blt", "emu3", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_assistant", "gemma4_unified",
    "gemma4_unified_assistant", "git", "got_ocr2", "llama4", "mllama", "moshi", "musicgen",
    "musicgen_melody", "moss_transcribe_diarize", "phi4_multimodal", "qwen3_5", "qwen3_5_moe",
    "qwen4_exp", "whisper",
}  # fmt: skip
DECODERS = tuple(kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if kind not in COMPOSITE)


def build(kind: str, seed: int = 0, **more: Any) -> Any:
    """A random model of four blocks in float32; `more` goes into its config."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(_config(kind, **more), dtype=torch.float32).eval()


def _config(kind: str, **more: Any) -> Any:
    cls = CONFIG_MAPPING[kind]
    fields = set(inspect.signature(cls.__init__).parameters) | set(cls.attribute_map)
    fields |= set(getattr(cls, "__dataclass_fields__", {}))
    sizes = {name: size for name, size in _SIZES.items() if name in fields}
    sizes |= _BY_KIND.get(kind, {}) | more
    return cls(**{name: size for name, size in sizes.items() if size is not None})
