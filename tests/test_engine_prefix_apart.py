"""The prefix attended to apart: the same values as attention over all keys at once."""

from __future__ import annotations

import pytest
import torch
from kit.engine_samples import CLOSE, SAMPLES, engine_states
from kit.tiny import ARCHITECTURES, tiny_lm, tiny_tokenizer

from anchorscope.engine import attention
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.layout import PAD, Layout
from anchorscope.engine.on_cpu import prefix
from anchorscope.engine.on_cpu.prefix import attend_apart, wins_apart
from anchorscope.engine.passes import ANSWER_ONLY, KNOCKOUT
from anchorscope.engine.trunk import pad_left
from anchorscope.models import load_model

ONE_HEAD = Intervention(name="head", heads=((2, 1),))
FRONT, SIZES, HEADS, GROUPS, WIDTH = 5, (3, 1, 7), 6, 2, 8


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor on which it wins."""
    monkeypatch.setattr(prefix, "_suits_processor", lambda: True)


def _layout() -> Layout:
    """Rows of unlike length, padded on the left."""
    at = pad_left([range(FRONT, FRONT + size) for size in SIZES], PAD, torch.device("cpu"))
    return Layout(at, at, prefix_length=FRONT, sizes=SIZES)


def test_values_equal_a_loop_over_queries() -> None:
    """In double precision, one query at a time; the last row does not see the prefix."""
    torch.manual_seed(0)
    layout, tokens = _layout(), sum(SIZES)
    query = torch.randn(1, HEADS, tokens, WIDTH)
    front = torch.randn(2, 1, GROUPS, FRONT, WIDTH)
    own = torch.randn(2, len(SIZES), GROUPS, max(SIZES), WIDTH)
    bias = torch.randn(len(SIZES), 1, max(SIZES), max(SIZES))
    seen = torch.tensor([True, True, False])[:, None, None]
    given = (query, tuple(front), tuple(own), bias, seen, layout, 0.3)
    values = attend_apart(*given)
    number = 0
    for row, size in enumerate(SIZES):
        for place in range(max(SIZES) - size, max(SIZES)):
            for head in range(HEADS):
                group = head // (HEADS // GROUPS)
                keys, held = (torch.cat([f[0, group], o[row, group]]).double()
                              for f, o in zip(front, own, strict=True))  # fmt: skip
                scores = 0.3 * keys @ query[0, head, number].double()
                scores[FRONT:] += bias[row, 0, place]
                scores[: 0 if seen[row] else FRONT] = -torch.inf
                wanted = torch.softmax(scores, 0) @ held
                torch.testing.assert_close(values[0, number, head].double(), wanted, **CLOSE)
            number += 1


@pytest.mark.parametrize("cut", [KNOCKOUT, ANSWER_ONLY, ONE_HEAD], ids=lambda cut: cut.name)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_states_are_those_of_attention_over_all_keys(architecture, cut, here, monkeypatch) -> None:
    model = load_model(tiny_lm(architecture), tokenizer=tiny_tokenizer(), device="cpu")
    taken: list[int] = []

    def counted(*given):
        taken.append(1)
        return attend_apart(*given)

    monkeypatch.setattr(attention, "attend_apart", counted)
    apart = engine_states(model, SAMPLES, cut)
    # Scores with a soft cap are written out; through a window a row may see a part of the prefix.
    assert len(taken) >= (model.blocks if architecture in ("llama", "qwen3", "gpt_neox") else 0)
    assert not taken or architecture != "gemma2"
    monkeypatch.setattr(prefix, "_suits_processor", lambda: False)
    count = len(taken)
    torch.testing.assert_close(apart, engine_states(model, SAMPLES, cut), **CLOSE)
    assert len(taken) == count


def test_where_it_is_not_chosen(here, monkeypatch) -> None:
    layout, query = _layout(), torch.zeros(1, HEADS, sum(SIZES), WIDTH)
    single = Layout(torch.full((4, 1), 9), torch.full((4, 1), 9), prefix_length=FRONT)
    with torch.no_grad():
        assert wins_apart(query, layout)
        assert not wins_apart(query.bfloat16(), layout)
        assert not wins_apart(query[:, :, :4], single)
    assert not wins_apart(query, layout)  # gradients may be wanted
    monkeypatch.setattr(prefix, "_KERNEL", None)  # a torch without it
    with torch.no_grad():
        assert not wins_apart(query, layout)
