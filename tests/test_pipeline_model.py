"""The model of a run: what is tried of a GPU's kernels before its weights are here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.tiny import ARCHITECTURES, tiny_lm, tiny_tokenizer

from anchorscope.config import Config
from anchorscope.engine import fused
from anchorscope.models import load_model
from anchorscope.pipeline import model as of_run

Tried = tuple[Any, ...]  # device, dtype, heads, key heads, width of a head


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Tried]:
    """What is tried, as on a machine with a GPU that is called cpu."""
    seen: list[Tried] = []

    def note(*shape: Any) -> bool:
        seen.append(shape)
        return True

    monkeypatch.setattr(fused, "_tried", note)
    monkeypatch.setattr(fused, "find_spec", lambda name: object())
    monkeypatch.setattr(fused, "_GPU", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return seen


def folder_of(place: Path, architecture: str) -> str:
    tiny_lm(architecture).save_pretrained(place)
    tiny_tokenizer().save_pretrained(place)
    return str(place)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_is_tried_early_is_what_the_model_asks_for(tmp_path, tried, architecture) -> None:
    config = Config(
        model=folder_of(tmp_path / "model", architecture), device="cpu", dtype="float16"
    )
    with of_run._kernels_tried(config, None):
        model = load_model(config.model, device="cpu", dtype="float16")
    assert len(tried) == 1  # by then
    assert fused.can_fuse(model)
    assert tried[1] == tried[0]


def test_what_failed_early_is_tried_again(monkeypatch) -> None:
    results = iter([False, True])
    monkeypatch.setattr(fused, "find_spec", lambda name: object())
    monkeypatch.setattr(fused, "_GPU", "cpu")
    monkeypatch.setattr(fused.trial, "works", lambda *_: next(results))
    monkeypatch.setattr(fused.trial, "chooses", lambda *_: True)
    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    fused._tried.cache_clear()
    fused.try_early(model.lm.config, model.device, model.dtype)
    assert fused.can_fuse(model)
    fused._tried.cache_clear()  # nothing of this is true


def test_nothing_is_tried_for_a_model_that_is_here_or_not_on_this_disk(tmp_path, tried) -> None:
    for asked, name in ((object(), folder_of(tmp_path / "model", "llama")), (None, "org/name")):
        with of_run._kernels_tried(Config(model=name, device="cpu"), asked):
            pass
    assert tried == []


def test_an_error_of_the_trial_is_not_the_models(tmp_path, monkeypatch) -> None:
    def fail(*_: object) -> None:
        time.sleep(0.1)
        raise RuntimeError("no kernel today")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(of_run, "try_early", fail)
    with of_run._kernels_tried(Config(model=folder_of(tmp_path / "model", "llama")), None):
        pass
