"""GGUF files: the tokens around a text, and when a file is another one."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from gguf import GGMLQuantizationType
from kit.tiny_gguf import write_gguf

from anchorscope.errors import UserError
from anchorscope.models import load_model
from anchorscope.models.gguf import read_header
from anchorscope.models.locate import folder_of
from anchorscope.models.prompts import first_tokens, has_chat, stop_ids


@pytest.mark.parametrize(
    ("kind", "pre", "named", "expected"),
    [
        ("llama", None, {}, (True, False)),  # SentencePiece: llama.cpp adds BOS
        ("llama", None, {"bos": False}, (False, False)),
        ("gpt2", "qwen2", {}, (False, False)),
        ("gpt2", "llama-bpe", {}, (True, False)),
        ("gpt2", "qwen2", {"bos": True, "eos": True}, (True, True)),
        ("t5", None, {}, (False, True)),
    ],
)
def test_the_header_names_the_tokens_around_a_text(tmp_path, kind, pre, named, expected):
    fields = {f"add_{name}_token": value for name, value in named.items()}
    file = write_gguf(tmp_path / "head.gguf", kind=kind, pre=pre, **fields)
    assert read_header(file)[:2] == expected


@pytest.mark.parametrize(
    ("options", "begins", "ends"),
    [
        ({}, "<s>", "?"),  # SentencePiece and a silent header
        ({"add_bos_token": False}, "▁", "?"),
        ({"add_eos_token": True}, "<s>", "</s>"),
        ({"bos_token_id": None, "eos_token_id": None}, "<s>", "?"),
        ({"kind": "gpt2"}, "Wh", "?"),  # byte-level BPE and a silent header
        ({"kind": "gpt2", "pre": "qwen2", "add_bos_token": True}, "<|begin|>", "?"),
        ({"kind": "gpt2", "pre": "llama-bpe"}, "<|begin|>", "?"),
        ({"kind": "gpt2", "pre": "llama-bpe", "add_bos_token": False}, "Wh", "?"),
        ({"kind": "gpt2", "bos_token_id": 4, "add_bos_token": True}, '"', "?"),
    ],
)
def test_a_text_begins_and_ends_as_the_file_says(tmp_path, options, begins, ends):
    model = load_model(write_gguf(tmp_path / "tiny.gguf", **options), device="cpu")
    tokens = model.tokenizer.convert_ids_to_tokens(model.tokenizer("Who?")["input_ids"])
    assert (tokens[0], tokens[-1]) == (begins, ends)
    assert first_tokens(model)[0] and not has_chat(model)


def test_a_chat_template_and_the_end_of_a_turn_come_from_the_header(tmp_path):
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    options = {"kind": "gpt2", "pre": "qwen2", "eot_token_id": 7}
    model = load_model(write_gguf(tmp_path / "chat.gguf", template=template, **options))
    assert model.tokenizer.chat_template == template and has_chat(model)
    assert {2, 7} <= set(stop_ids(model)) and model.tokenizer.eos_token_id == 2


def test_a_kind_of_weights_that_cannot_be_read_is_a_sentence(tmp_path):
    file = write_gguf(tmp_path / "odd.gguf", quantised=GGMLQuantizationType.Q8_K)
    with pytest.raises(UserError, match=r"could not be read: .*Q8_K.* Accepted: whole GGUF"):
        load_model(file)


@pytest.mark.parametrize("share", [None, 0, 1e-3, 0.03, 0.99])
def test_a_file_that_is_cut_off_or_no_gguf_is_a_sentence(tmp_path, share):
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    file = tmp_path / "torn.gguf"
    file.write_bytes(b"hello" * 4000 if share is None else whole[: int(share * len(whole))])
    with pytest.raises(UserError, match=r"torn\.gguf could not be read: "):
        load_model(file)


@pytest.mark.parametrize("at", [0, (9 << 20) + 54321, (20 << 20) + 77])
def test_a_file_changed_in_one_byte_is_another_file(tmp_path, at):
    path = tmp_path / "weights.gguf"
    path.write_bytes(bytes(20 << 20) + b"end" * 99)
    before = folder_of(path)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"x")
    assert folder_of(path) != before


def test_a_text_must_begin_as_the_files_name_it(tiny_llama):
    tokenizer = copy.deepcopy(tiny_llama.tokenizer)
    tokenizer.bos_token = "<end>"
    model = replace(tiny_llama, tokenizer=tokenizer)
    assert first_tokens(model) == (True, "its files name none")
    tokenizer.init_kwargs["add_bos_token"] = False
    assert first_tokens(model) == (True, "no '<end>'")
    tokenizer.init_kwargs["add_bos_token"] = True
    assert first_tokens(model) == (False, "0 × '<end>' in front of a text prompt")
