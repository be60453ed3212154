"""Half precision that rounds too much to tell: proved in float32 on the same weights."""

from __future__ import annotations

import pytest
import torch
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.engine.check import check_model, stock
from anchorscope.engine.check.checks import can_be_float32, in_float32
from anchorscope.engine.layout import Layout
from anchorscope.models import Model, load_model

POST = {"a knockout after the softmax"}


@pytest.fixture
def half() -> Model:
    return load_model(tiny_lm("llama").to(torch.bfloat16), tokenizer=tiny_tokenizer())


def failed(model: Model) -> set[str]:
    return {check.name for check in check_model(model) if not check.ok}


def test_the_way_to_float32_and_back_loses_nothing(half):
    before = {name: of.clone() for name, of in half.lm.state_dict().items()}
    with in_float32(half):
        assert half.dtype == torch.float32
        assert all(weight.dtype == torch.float32 for weight in half.lm.parameters())
    after = half.lm.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert half.dtype == torch.bfloat16


def test_a_check_without_power_in_half_precision_is_made_in_float32(half, monkeypatch):
    assert can_be_float32(half)
    monkeypatch.setitem(stock._TOLERANCE, torch.bfloat16, 0.5)  # as if rounding hid everything
    seen = list(check_model(half))
    assert all(check.ok for check in seen)
    assert any("in float32 on the same weights" in check.seen for check in seen)


def test_a_fault_is_not_excused_by_rounding(half, monkeypatch):
    monkeypatch.setitem(stock._TOLERANCE, torch.bfloat16, 0.5)
    monkeypatch.setattr(Layout, "kept", lambda self, block, dtype: None)  # post does nothing
    assert failed(half) >= POST


def test_a_model_in_float32_stays_as_it_is():
    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    assert not can_be_float32(model)
