"""Drawn answers: the model's own distribution, one number a token, whatever the batch."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from kit.detect_worlds import plain, write_run
from kit.planted import made
from test_detect_score import QUESTIONS, SHOTS, make

from anchorscope.config import Config
from anchorscope.detect.collected import draw_answers
from anchorscope.detect.detector import Detector
from anchorscope.detect.kinds import same_answer
from anchorscope.detect.material import from_run
from anchorscope.detect.prompts import Exchange
from anchorscope.detect.read_answers import uniforms
from anchorscope.engine.decode import draw_tokens
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError
from anchorscope.evidence.shards import Shards
from anchorscope.models.prompts import make_prompt, stop_ids
from anchorscope.pipeline.collect import add_samples, collect
from anchorscope.records import Question, QuestionSet
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.table_columns import SAMPLED_ROWS
from anchorscope.run_folder.view import RunView
from anchorscope.serve.protocol import Ask
from anchorscope.serve.served import Served

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


def test_a_detector_that_draws_answers_compares_what_a_plain_loop_draws(tiny_llama, tmp_path):
    detector = make(tiny_llama, "self-check", samples=3, temperature=0.8)
    again = Detector.load(detector.save(tmp_path / "detector"))
    served = Served(again, tiny_llama)
    for question, one in zip(QUESTIONS, again.score(tiny_llama, QUESTIONS), strict=True):
        prompt = make_prompt(tiny_llama, question, shots=SHOTS, style="text").ids
        numbers = uniforms(0, question, samples=3, steps=8)
        drawn = [plain_answer(tiny_llama, prompt, own, 0.8)[0] for own in numbers]
        texts = [tiny_llama.tokenizer.decode(ids, skip_special_tokens=True) for ids in drawn]
        other = [not same_answer(one.answer, text.strip(), question) for text in texts]
        written = served.answer([Ask(exchange=Exchange(question=question, answer=""))])
        for scored in (one, written[0].scored):
            if not one.reason:
                assert scored.score == pytest.approx(np.mean(other))
    with pytest.raises(UserError, match="draws answers, which needs the model"):
        again.score_states([1], np.zeros((1, 4, 48)), tokenizer=tiny_llama.tokenizer)


def test_training_keeps_how_many_answers_were_drawn_and_how(tmp_path):
    world = plain(n=90)
    folder = write_run(tmp_path / "run", [world])
    with pytest.raises(UserError, match="no answers were drawn"):
        Detector.train(folder, method="semantic-entropy")
    rows = [
        (id, n, f"name {n if z else 0}", -1.0, 2, 3, 1.0)
        for id, z in zip(world.ids, world.z, strict=True)
        for n in range(4)
    ]
    store = Store(folder)
    table = pd.DataFrame(rows, columns=list(SAMPLED_ROWS))
    store.write("evidence/sampled/00000.parquet", table.to_parquet)
    store.save_info({"sampled": {"samples": 4, "temperature": 0.5}})
    trained = Detector.train(folder, method="semantic-entropy", folds=3, resamples=100)
    assert (trained.method.samples_, trained.method.temperature_) == (4, 0.5)
    assert trained.evaluation["auroc"] == 1.0
    assert "4 answers drawn at temperature 0.5" in trained.card


def test_another_number_or_temperature_is_refused(collected, tiny_llama):
    add_samples(collected, samples=2, model=tiny_llama)
    with pytest.raises(UserError, match=r"has 2 drawn answers to each question"):
        add_samples(collected, samples=3, model=tiny_llama)
    for bad, words in (({"samples": 1}, "--samples is 1"),
                       ({"samples": 2, "temperature": 0.0}, "--temperature is 0.0")):  # fmt: skip
        with pytest.raises(UserError, match=words):
            add_samples(collected, model=tiny_llama, **bad)
