"""Write tiny GGUF files with chosen header fields; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quantize
from tokenizers import pre_tokenizers

WIDTH, BLOCKS, HEADS, FORWARD = 32, 2, 4, 64
WORDS = ["▁Who", "▁wrote", "▁Hamlet", "?", "▁", "W", "h", "o"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def write_gguf(
    path: Path,
    *,
    kind: str = "llama",
    pre: str | None = None,
    template: str | None = None,
    quantised: GGMLQuantizationType | None = None,
    architecture: str = "llama",
    **fields: Any,
) -> Path:
    """Write a llama of two blocks; `kind` is the tokenizer's, `fields` are its header fields."""
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    tokens = _spm(writer) if kind == "llama" else _bpe(writer)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(kind)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    for name, value in ({"bos_token_id": 1, "eos_token_id": 2} | fields).items():
        if value is not None:
            getattr(writer, f"add_{name}")(value)
    if template is not None:
        writer.add_chat_template(template)
    _tensors(writer, len(tokens), quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _spm(writer: GGUFWriter) -> list[str]:
    """SentencePiece: tokens with scores and kinds (2 unknown, 3 control, 6 byte, 1 normal)."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *WORDS]
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(n) for n in range(len(tokens))])
    writer.add_token_types([2, 3, 3, *[6] * len(BYTES), *[1] * len(WORDS)])
    writer.add_unk_token_id(0)
    return tokens


def _bpe(writer: GGUFWriter) -> list[str]:
    """Byte-level BPE with two merges, as the first transformers 5 misreads a list of one."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<unk>", "<|begin|>", "<|end|>", *letters, "Wh", "Qq"]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges(["W h", "Q q"])
    return tokens


def _tensors(writer: GGUFWriter, size: int, quantised: GGMLQuantizationType | None) -> None:
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        weight = random.normal(0, 0.2, shape).astype(np.float32)
        if quantised is None or len(shape) == 1:
            writer.add_tensor(name, weight + (len(shape) == 1))
            return
        try:
            raw = quantize(weight, quantised)
        except NotImplementedError:
            # The content of the blocks does not matter: it is the kind that cannot be read.
            block, space = GGML_QUANT_SIZES[quantised]
            raw = np.zeros((shape[0], -(-shape[1] // block) * space), dtype=np.uint8)
        writer.add_tensor(name, raw, raw_dtype=quantised)

    add("token_embd.weight", size, WIDTH)
    for block in range(BLOCKS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{block}.{name}.weight", WIDTH, WIDTH)
        add(f"blk.{block}.ffn_gate.weight", FORWARD, WIDTH)
        add(f"blk.{block}.ffn_up.weight", FORWARD, WIDTH)
        add(f"blk.{block}.ffn_down.weight", WIDTH, FORWARD)
        add(f"blk.{block}.attn_norm.weight", WIDTH)
        add(f"blk.{block}.ffn_norm.weight", WIDTH)
    add("output_norm.weight", WIDTH)
    add("output.weight", size, WIDTH)
