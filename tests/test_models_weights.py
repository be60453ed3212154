"""Weights that changed in any byte: a run is not continued with them, a damaged cache is remade."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from kit.rivers import rivers
from kit.tiny import tiny_lm
from kit.tiny_gguf import write_gguf
from safetensors.torch import load_file, save_file

from anchorscope.models import load_model
from anchorscope.run_folder.identity import weights_hash

COLLECT = ["detect", "collect", "--model", "model", "--data", "rivers.jsonl", "--max-tokens", "4"]
COLLECT += ["--device", "cpu", "--dtype", "float32", "--threads", "1", "--out", "run"]


def change_one_value(folder: Path) -> None:
    """Changes one value in the middle of one weight of a saved model."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    weight = weights["model.layers.2.mlp.up_proj.weight"]
    weight[weight.shape[0] // 2, weight.shape[1] // 2] += 1.0
    save_file(weights, file, metadata={"format": "pt"})


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


def test_run_continued_with_other_weights_is_refused(tmp_path, cli, monkeypatch):
    place = rivers(tmp_path)
    monkeypatch.chdir(place)
    code, _, error = cli(*COLLECT)
    assert code == 0, error
    (place / "run" / "states/knockout/00000.safetensors").unlink(missing_ok=True)
    change_one_value(place / "model")
    code, out, error = cli(*COLLECT)
    assert code == 2 and "was begun with other weights" in out + error


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("damage", ["zeros", "cut", "gone", "tokenizer"])
def test_damaged_cache_of_a_gguf_file_is_converted_again_with_a_note(
    tmp_path, cache, cli, caplog, damage
):
    file = write_gguf(tmp_path / "tiny.gguf")
    clean = weights_hash(load_model(file, device="cpu").lm)
    (folder,) = cache.iterdir()
    weights = folder / "model.safetensors"
    size = weights.stat().st_size
    if damage == "zeros":
        with weights.open("r+b") as handle:
            handle.seek(size // 2)
            handle.write(bytes(2048))
    elif damage == "cut":
        with weights.open("r+b") as handle:
            handle.truncate(size - 1)
    elif damage == "gone":
        weights.unlink()
    else:
        tokenizer = folder / "tokenizer.json"
        tokenizer.write_text(tokenizer.read_text().replace("Hamlet", "Hamlte"))
    caplog.clear()
    code, out, error = cli("doctor", "--model", file, "--device", "cpu")
    assert code == 0, out + error
    assert "is damaged" in caplog.text and "converted again" in caplog.text
    assert "Traceback" not in error
    caplog.clear()
    assert weights_hash(load_model(file, device="cpu").lm) == clean
    assert not caplog.text  # whole again
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_conversion_shows_no_bar_of_transformers(tmp_path, cache, cli):
    file = write_gguf(tmp_path / "tiny.gguf")
    code, out, error = cli("doctor", "--model", file, "--device", "cpu")
    assert code == 0 and "GGUF tensors" not in out + error and "it/s" not in out + error


def test_conversion_cut_short_leaves_nothing_that_is_read(tmp_path, cache):
    file = write_gguf(tmp_path / "tiny.gguf")
    load_model(file, device="cpu")
    (folder,) = cache.iterdir()
    (folder / "checksums.json").unlink()
    shutil.copytree(folder, cache / f"{folder.name}.1.partial")
    assert weights_hash(load_model(file, device="cpu").lm)
    assert (folder / "checksums.json").is_file()
