"""GGUF files: the tokens around a text, and when a file is another one."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from gguf import GGUFWriter

from anchorscope.models.converted_folder import _fingerprint
from anchorscope.models.gguf_tokens import Around, around
from anchorscope.models.prompts import first_tokens


@pytest.mark.parametrize(
    ("kind", "pre", "named", "expected"),
    [
        ("llama", None, {}, Around(True, False)),  # SentencePiece: llama.cpp adds BOS
        ("llama", None, {"bos": False}, Around(False, False)),
        ("gpt2", "qwen2", {}, Around(False, False)),
        ("gpt2", "llama-bpe", {}, Around(True, False)),
        ("gpt2", "qwen2", {"bos": True, "eos": True}, Around(True, True)),
        ("t5", None, {}, Around(False, True)),
    ],
)
def test_the_header_says_what_stands_around_a_text(tmp_path, kind, pre, named, expected):
    writer = GGUFWriter(tmp_path / "head.gguf", "llama")
    writer.add_tokenizer_model(kind)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    if "bos" in named:
        writer.add_add_bos_token(named["bos"])
    if "eos" in named:
        writer.add_add_eos_token(named["eos"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert around(tmp_path / "head.gguf") == expected


@pytest.mark.parametrize("at", [0, 9 << 20, (20 << 20) + 77])
def test_a_file_changed_anywhere_is_another_file(tmp_path, at):
    path = tmp_path / "weights.gguf"
    path.write_bytes(bytes(20 << 20) + b"end" * 99)
    before = _fingerprint(path)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"x" * (1 << 20 if at == 9 << 20 else 1))
    assert _fingerprint(path) != before


def test_a_text_must_begin_as_the_files_name_it(tiny_llama):
    tokenizer = copy.deepcopy(tiny_llama.tokenizer)
    tokenizer.bos_token = "<end>"
    model = replace(tiny_llama, tokenizer=tokenizer)
    assert first_tokens(model) == (True, "its files name none")
    tokenizer.init_kwargs["add_bos_token"] = False
    assert first_tokens(model) == (True, "no '<end>'")
    tokenizer.init_kwargs["add_bos_token"] = True
    assert first_tokens(model) == (False, "0 × '<end>' in front of a text prompt")
