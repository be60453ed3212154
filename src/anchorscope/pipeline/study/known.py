"""The shapes of the shipped studies' models, for a plan without a connection and for rehearsals.

Facts of their published configs; nothing here is needed where the hub can be reached.
"""

from __future__ import annotations

from typing import Any

_LLAMA = {"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 5e5}
_SMALL = {**_LLAMA, "intermediate_size": 8192, "tie_word_embeddings": True}
_LLAMA_3 = {**_LLAMA, "head_dim": 128}
_MISTRAL = {
    "model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
}  # fmt: skip
_QWEN = {
    "model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "rope_theta": 1e6,
}  # fmt: skip


def _shape(blocks: int, width: int, heads: int, inner: int | None = None) -> dict[str, int]:
    shape = {"num_hidden_layers": blocks, "hidden_size": width, "num_attention_heads": heads}
    return shape if inner is None else {**shape, "intermediate_size": inner}


KNOWN: dict[str, dict[str, Any]] = {
    "Llama-3.2-1B": {**_SMALL, **_shape(16, 2048, 32), "head_dim": 64},
    "Llama-3.2-3B": {**_SMALL, **_shape(28, 3072, 24), "head_dim": 128},
    "Meta-Llama-3-8B": {**_LLAMA_3, **_shape(32, 4096, 32, 14336)},
    "Meta-Llama-3-70B": {**_LLAMA_3, **_shape(80, 8192, 64, 28672)},
    "Mistral-7B-v0.1": {**_MISTRAL, "vocab_size": 32000},
    "Mistral-7B-v0.3": {**_MISTRAL, "vocab_size": 32768},
    "Qwen3-8B": {**_QWEN, **_shape(36, 4096, 32, 12288)},
    "Qwen3-32B": {**_QWEN, **_shape(64, 5120, 64, 25600)},
}


def known_config(model: str) -> Any | None:
    """The config of transformers for a model by its name, base or instruct; None if not known."""
    from transformers import AutoConfig

    name = model.rsplit("/", 1)[-1]
    for ending in ("-Instruct", "-Base"):
        name = name.replace(ending, "")
    return AutoConfig.for_model(**KNOWN[name]) if name in KNOWN else None
