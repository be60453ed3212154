"""Weights that changed in any byte are others, and a damaged cache of them is made again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from kit.tiny import tiny_lm
from kit.tiny_gguf import write_gguf

from anchorscope.models import load_model
from anchorscope.run_folder.identity import weights_hash


def test_every_value_of_every_weight_counts():
    """Of parameters and of buffers that are saved, in half precision and of any kind."""
    lm = tiny_lm("llama")
    before = weights_hash(lm)
    assert weights_hash(tiny_lm("llama")) == before
    for name, weight in lm.named_parameters():
        with torch.no_grad():
            kept = weight.flatten()[-1].clone()
            weight.view(-1)[-1] += 1.0
            assert weights_hash(lm) != before, name
            weight.view(-1)[-1] = kept
    assert weights_hash(lm) == before
    seen = {before, weights_hash(lm.to(torch.bfloat16))}
    for name, buffer in (
        ("scale", torch.tensor(2.0)),
        ("correction", torch.zeros(3)),
        ("flags", torch.tensor([True, False])),
    ):
        lm.register_buffer(name, buffer)
        seen.add(weights_hash(lm))
        buffer.view(-1)[-1] = 1
        seen.add(weights_hash(lm))
    assert len(seen) == 8


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("damage", ["zeros", "gone", "tokenizer"])
def test_damaged_cache_of_a_gguf_file_is_converted_again_with_a_note(
    tmp_path, cache, caplog, capfd, damage
):
    file = write_gguf(tmp_path / "tiny.gguf")
    clean = weights_hash(load_model(file, device="cpu").lm)
    (folder,) = cache.glob("tiny*")
    weights, tokenizer = folder / "model.safetensors", folder / "tokenizer.json"
    if damage == "zeros":
        with weights.open("r+b") as handle:
            handle.seek(weights.stat().st_size // 2)
            handle.write(bytes(2048))
    elif damage == "gone":
        weights.unlink()
    else:
        tokenizer.write_text(tokenizer.read_text().replace("Hamlet", "Hamlte"))
    caplog.clear()
    load_model(file, device="cpu")
    assert "is damaged" in caplog.text and "converted again" in caplog.text
    caplog.clear()
    assert weights_hash(load_model(file, device="cpu").lm) == clean
    assert not caplog.text  # whole again
    assert [path.name for path in cache.glob("tiny*")] == [folder.name]
    out, error = capfd.readouterr()  # without the bars of transformers
    assert "GGUF tensors" not in out + error and "it/s" not in out + error


def test_conversion_cut_short_leaves_nothing_that_is_read(tmp_path, cache):
    file = write_gguf(tmp_path / "tiny.gguf")
    load_model(file, device="cpu")
    (folder,) = cache.glob("tiny*")
    (folder / "checksums.json").unlink()
    shutil.copytree(folder, cache / f"{folder.name}.partial")
    assert weights_hash(load_model(file, device="cpu").lm)
    assert (folder / "checksums.json").is_file()
    assert [path.name for path in cache.glob("tiny*")] == [folder.name]
