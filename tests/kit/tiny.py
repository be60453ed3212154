"""Tiny random models built from configs, and a byte tokenizer: nothing is downloaded."""

from __future__ import annotations

import functools
from importlib.metadata import version
from pathlib import Path

import torch
from packaging.version import Version
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM as Auto
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

_SIZES = {
    "vocab_size": 300,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # attention far from uniform: a wrong mask must show
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "head_dim": 12}
_LONG = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
CONFIGS = {
    "llama": lambda: LlamaConfig(**_GROUPED, rope_parameters=_LONG, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**_GROUPED),
    "mistral": lambda: MistralConfig(**_GROUPED, sliding_window=7),
    "gemma2": lambda: Gemma2Config(**_GROUPED, sliding_window=7, query_pre_attn_scalar=12),
    "gemma3": lambda: Gemma3TextConfig(**_GROUPED, sliding_window=7, query_pre_attn_scalar=12),
    "gpt_neox": lambda: GPTNeoXConfig(**_SIZES),
}
ARCHITECTURES = tuple(CONFIGS)


def tiny_lm(architecture: str, seed: int = 0):
    """A random causal language model of four blocks in float32."""
    torch.manual_seed(seed)
    config = CONFIGS[architecture]()
    # SDPA has no soft-capping; transformers up to 5.20 leaves it out there silently.
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    attention = {"attn_implementation": "eager"} if capped else {}
    return Auto.from_config(config, dtype=torch.float32, **attention).eval()


@functools.cache
def tiny_tokenizer(*tokens: str) -> PreTrainedTokenizerFast:
    """A tokenizer of single bytes, with offsets, a token for the end, and these tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0, **{letter: i + 1 for i, letter in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(list(tokens))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def save_tiny(folder: Path, architecture: str = "llama") -> Path:
    """Save a tiny model with its tokenizer; return the folder."""
    tiny_lm(architecture).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def replaced(lm: torch.nn.Module) -> list[str]:
    """The class names of the modules whose `forward` is replaced."""
    return [type(m).__name__ for m in lm.modules() if "forward" in m.__dict__]


def older(package: str, than: str) -> bool:
    """Whether the installed release comes before this one."""
    return Version(version(package)) < Version(than)
