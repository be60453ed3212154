"""Memory of a batch: what bounds it, how states leave it, what run.json says where it ran out."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from kit.rivers import rivers
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.answers.generate import Answerer
from anchorscope.engine.batches import power_of_two
from anchorscope.engine.decode import Prefix, states_bytes
from anchorscope.engine.transfer import to_host
from anchorscope.models import load_model

COLLECT = ["detect", "collect", "--model", "model", "--data", "rivers.jsonl", "--out", "run"]
COLLECT += ["--device", "cpu", "--dtype", "float32", "--threads", "1"]
KEYS = 2 * 4 * 2 * 12 * 4  # bytes of a position: keys and values, blocks, heads, width, float32
STATE = 4 * 48 * 4  # bytes of the states of a token


@pytest.fixture
def sizes(monkeypatch) -> list[tuple[int, int]]:
    """How many rows each batch of answers has, and how many positions its longest prompt."""
    seen: list[tuple[int, int]] = []
    own = Answerer.answer

    def answer(self, lease, prefix, ids, prompts, **options):
        seen.append((len(prompts), max(map(len, prompts))))
        return own(self, lease, prefix, ids, prompts, **options)

    monkeypatch.setattr(Answerer, "answer", answer)
    return seen


def test_states_of_answers_are_within_the_bound(tmp_path, cli, monkeypatch, sizes):
    """A quarter of the bytes of a batch with long answers are their states."""
    memory = 40 << 20
    monkeypatch.setattr("anchorscope.engine.batches.all_memory", lambda: memory)
    place = rivers(tmp_path)
    monkeypatch.chdir(place)
    code, _, error = cli(*COLLECT, "--max-tokens", "256", "--shots", "0")
    assert code == 0, error
    stages = json.loads((place / "run/run.json").read_text())["stages"]
    assert not any("halved" in stage for stage in stages.values())
    bound = power_of_two(memory // 16)
    answers = [size for size in sizes if size[1] > 1]
    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    assert answers and states_bytes(model, 5) == 5 * STATE
    for rows, positions in answers:
        assert rows == 1 or rows * ((positions + 256) * KEYS + 256 * STATE) <= bound


@pytest.mark.parametrize(("apart", "rows"), [(False, 5), (True, 9)])
def test_shared_prefix_is_counted_as_often_as_it_is_held(apart, rows):
    """In every row's buffer, but where a kernel reads it in place: there once."""
    pair = (torch.zeros(1, 2, 10, 3), torch.zeros(1, 2, 10, 3))
    position = 2 * 2 * 3 * 4
    prefix = Prefix(tuple(range(10)), (pair,))
    memory = position * 100
    assert prefix.rows_within(memory, room=6, beside=position * 4, segmented=apart) == rows
    assert prefix.rows_within(None, room=6) is None
    assert prefix.rows_within(1, room=6) == 1
    assert Prefix((), None).rows_within(memory, room=6) is None
    assert Prefix((), None).rows_within(memory, room=6, beside=position * 4) == 25


def test_halved_batches_are_noted_in_run_json(tmp_path, cli, monkeypatch):
    place = rivers(tmp_path)
    monkeypatch.chdir(place)
    own, lengths = Answerer.answer, []

    def answer(self, lease, prefix, ids, prompts, **options):
        lengths.append(len(prompts))
        if len(prompts) > 3:
            raise torch.OutOfMemoryError
        return own(self, lease, prefix, ids, prompts, **options)

    monkeypatch.setattr(Answerer, "answer", answer)
    code, out, error = cli(*COLLECT, "--max-tokens", "4", "--shard", "8", "--prompt", "text")
    assert code == 0, error
    info = json.loads((place / "run/run.json").read_text())
    halved = info["stages"]["answers and states"]["halved"]
    assert len(halved) == sum(length > 3 for length in lengths) >= 1
    assert all(isinstance(tokens, int) and tokens > 0 for tokens in halved)
    assert halved == sorted(halved, reverse=True)
    assert "memory ran out" in out + error


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU"))])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_arrive_halved_or_whole_where_a_half_cannot_hold_them(device, dtype):
    states = torch.randn(5, 4, 8, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    assert np.array_equal(to_host(states), states.to(torch.float16).cpu().numpy())
    for odd in (1e6, float("nan"), float("inf")):
        states[2, 1, 3] = odd
        array = to_host(states)
        assert array.dtype == np.float32
        assert np.array_equal(array, states.float().cpu().numpy(), equal_nan=True)
