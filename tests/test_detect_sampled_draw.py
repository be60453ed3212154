"""Drawn answers: the model's own distribution, one number a token, whatever the batch."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from kit.planted import made

from anchorscope.config import Config
from anchorscope.detect.extra_answers import draw_answers, uniforms
from anchorscope.detect.material import from_run
from anchorscope.engine.decode import draw_tokens
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError
from anchorscope.evidence.shards import Shards
from anchorscope.models.prompts import stop_ids
from anchorscope.pipeline.collect import add_samples, collect
from anchorscope.records import Question, QuestionSet
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView

SUBJECTS = ("tea", "ale", "long island", "a river")


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_evenly_spread_numbers_draw_each_token_as_often_as_its_probability(temperature):
    log_probs = torch.log_softmax(torch.randn(1, 20), dim=-1)
    n = 20_000
    numbers = (torch.arange(n) + 0.5) / n
    tokens = draw_tokens(log_probs.expand(n, -1), numbers.double(), temperature)
    found = np.bincount(tokens.numpy(), minlength=20)
    wanted = n * torch.softmax(log_probs[0].double() / temperature, -1).numpy()
    assert np.abs(found - wanted).max() <= 1


def plain_answer(model, prompt, numbers, temperature):
    """The same draw in a plain loop: the whole sequence through the model for every token."""
    ids, total = list(prompt), 0.0
    for number in numbers:
        with torch.no_grad():
            logits = model.lm(torch.tensor([ids])).logits[0, -1].double()
        heights = np.cumsum(torch.softmax(logits / temperature, -1).numpy())
        token = int(np.searchsorted(heights, number * heights[-1], side="right"))
        if token in stop_ids(model):
            return ids[len(prompt) :], total
        total += float(torch.log_softmax(logits, -1)[token])
        ids.append(token)
    return ids[len(prompt) :], total


def test_drawn_answers_are_those_of_a_plain_loop_in_any_batch(tiny, tmp_path):
    samples = [made(tiny, n, subject) for n, subject in enumerate(SUBJECTS)]
    options = {"samples": 3, "temperature": 0.8, "max_tokens": 5}
    with Lease(tiny) as lease:
        for name, parts in (("all", [samples]), ("each", [[s] for s in samples])):
            draw_answers(Shards(lease, Store(tmp_path / name), parts, seed=4), **options)
    tables = [
        pd.concat(map(pd.read_parquet, sorted((tmp_path / name).rglob("*.parquet"))))
        for name in ("all", "each")
    ]
    for table in tables:
        assert list(table["number"]) == [0, 1, 2] * len(samples)
    assert list(tables[0]["text"]) == list(tables[1]["text"])
    for sample in samples[:2]:
        rows = tables[0][tables[0]["id"] == sample.id]
        for row, numbers in zip(
            rows.to_dict("records"), uniforms(4, sample.id, samples=3, steps=5), strict=True
        ):
            ids, total = plain_answer(tiny, sample.prompt_ids, numbers, 0.8)
            assert row["tokens"] == len(ids)
            assert row["text"] == tiny.tokenizer.decode(ids, skip_special_tokens=True).strip()
            assert row["log_prob"] == pytest.approx(total, abs=1e-3)


@pytest.fixture
def collected(tiny_llama, tmp_path):
    questions_asked = tuple(
        Question(id=f"q:{n}", dataset="q", text=f"what is {s} for?", answers=("x",),
                 subjects=(s,), entity=s)
        for n, s in enumerate(SUBJECTS)
    )  # fmt: skip
    questions = QuestionSet(name="q", title="Q", questions=questions_asked, shots=())
    config = Config(limit=None, shots=0, max_tokens=6, shard=2, dtype="float32", device="cpu")
    return collect(tiny_llama, questions, out=tmp_path / "run", config=config)


def test_samples_are_added_to_a_finished_run_and_not_drawn_twice(collected, tiny_llama):
    before = RunView.open(collected, collected_ok=True)
    assert from_run(before, "q").texts[0].sampled is None
    add_samples(collected, samples=3, model=tiny_llama)
    files = sorted((collected / "evidence" / "sampled").glob("*.parquet"))
    assert len(files) == 2
    texts = from_run(RunView.open(collected, collected_ok=True), "q").texts
    assert all(t.sampled is not None and len(t.sampled.texts) == 3 for t in texts)
    assert all(len(t.entropies) == len(t.log_probs) for t in texts)
    first = files[0].read_bytes()
    files[1].unlink()
    stamp = files[0].stat().st_mtime_ns
    add_samples(collected, samples=3, model=tiny_llama)
    again = from_run(RunView.open(collected, collected_ok=True), "q").texts
    assert files[0].stat().st_mtime_ns == stamp
    assert files[0].read_bytes() == first
    drawn_texts = [t.sampled.texts for t in texts if t.sampled]
    assert [t.sampled.texts for t in again if t.sampled] == drawn_texts
    assert RunView.open(collected, collected_ok=True).datasets == ["q"]


def test_another_number_or_temperature_is_refused(collected, tiny_llama):
    add_samples(collected, samples=2, model=tiny_llama)
    with pytest.raises(UserError, match=r"has 2 drawn answers to each question"):
        add_samples(collected, samples=3, model=tiny_llama)
    for bad, words in (({"samples": 1}, "--samples is 1"),
                       ({"samples": 2, "temperature": 0.0}, "--temperature is 0.0")):  # fmt: skip
        with pytest.raises(UserError, match=words):
            add_samples(collected, model=tiny_llama, **bad)
