"""Answers that are given, read in one pass, and the command line that scores them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from kit.tiny import tiny_lm, tiny_tokenizer
from test_detect_score import QUESTIONS, SHOTS, WIDTH, make

from anchorscope.cli import main
from anchorscope.detect.calibration import Platt
from anchorscope.detect.side_probes import PreAnswerProbe
from anchorscope.models import load_model
from anchorscope.models.prompts import make_prompt


class Counted:
    """How many passes a model made and how many tokens it read, while open."""

    def __init__(self, model) -> None:
        self.passes = self.tokens = 0
        self._hook = model.lm.get_input_embeddings().register_forward_pre_hook(self._count)

    def _count(self, module, args) -> None:
        self.passes, self.tokens = self.passes + 1, self.tokens + args[0].numel()

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()


LONG = "Very Long Answer " * 12
GIVEN = ["Rome", "R", "India or " + LONG, "?", LONG]


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_log_probs_of_given_answers_are_the_models_from_one_pass(architecture):
    """Against the stock model, which is given every beginning of every answer by itself."""
    model = load_model(tiny_lm(architecture), tokenizer=tiny_tokenizer())
    questions = [*QUESTIONS, "Is it?"]
    made = {name: make(model, name) for name in ("sum-log-prob", "first-entropy")}
    # The prefix is read once, and a pack longer than any before is tried once.
    made["sum-log-prob"].score(model, questions, answer=GIVEN)
    with Counted(model) as seen:
        sums = made["sum-log-prob"].score(model, questions, answer=GIVEN)
    assert seen.passes == 2  # the questions, then the answers
    prompts = [make_prompt(model, q, shots=SHOTS, style="text").ids for q in questions]
    entities = [one.answer_entity or one.answer for one in sums]
    assert entities == [answer.strip() for answer in GIVEN]
    answers = [model.tokenizer(f" {entity}")["input_ids"] for entity in entities]
    shared = made["sum-log-prob"].bind(model).shared
    # Each beginning of a question once, and every answer.
    begun = {tuple(p[:n]) for p in prompts for n in range(len(shared) + 1, len(p) + 1)}
    assert seen.tokens == len(begun) + sum(map(len, answers))
    first = made["first-entropy"].score(model, questions, answer=GIVEN)
    for prompt, ids, one, entropy in zip(prompts, answers, sums, first, strict=True):
        if one.reason:
            continue
        with torch.no_grad():
            places = range(0, len(ids), max(1, len(ids) // 8))
            log_probs = torch.log_softmax(model.lm(torch.tensor([[*prompt, *ids]])).logits[0], -1)
            for n in places:  # every so often by brute force: the tokens before it alone
                alone = model.lm(torch.tensor([[*prompt, *ids[:n]]])).logits[0, -1]
                again = torch.log_softmax(alone, -1)
                assert torch.allclose(again, log_probs[len(prompt) + n - 1], atol=1e-4)
        at = torch.arange(len(prompt) - 1, len(prompt) + len(ids) - 1)
        assert one.score == pytest.approx(-float(log_probs[at, ids].sum()), rel=1e-4)
        start = log_probs[len(prompt) - 1]
        assert entropy.score == pytest.approx(-float((start.exp() * start).sum()), rel=1e-4)
    assert sum(not one.reason for one in sums) >= 4


def test_the_logits_of_long_answers_are_held_a_part_at_a_time(tiny_llama, monkeypatch):
    detector = make(tiny_llama, "sum-log-prob")
    want = detector.score(tiny_llama, QUESTIONS, answer=GIVEN[:4])
    monkeypatch.setattr("anchorscope.engine.read._LOGITS", 300 * 8)
    with Counted(tiny_llama) as seen:
        parts = detector.score(tiny_llama, QUESTIONS, answer=GIVEN[:4])
    assert seen.passes == 1 + 3  # 8 tokens a pass or one answer: "?" and "R", "Rome", the long
    for one, other in zip(want, parts, strict=True):
        assert one.score == pytest.approx(other.score, rel=1e-5, nan_ok=True)


def test_a_warning_from_the_command_line(tiny_llama, tmp_path, monkeypatch, capsys):
    place = tmp_path / "model"
    tiny_llama.lm.save_pretrained(place)
    tiny_llama.tokenizer.save_pretrained(place)
    probe = PreAnswerProbe(layer=2, coef=np.ones(WIDTH, np.float32), intercept=0.3, threshold=0.5,
                    calibration=Platt(0.2, -0.1), evaluation={"auroc": None})  # fmt: skip
    detector = replace(make(tiny_llama), pre_answer=probe)
    detector.save(tmp_path / "detector")
    words = ["detect", "score", tmp_path / "detector", "--question", QUESTIONS[0], "--before"]
    more = ["--model", str(place), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["anchorscope", *map(str, words), *more])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    printed = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    want = detector.warn(tiny_llama, QUESTIONS[0])
    assert printed["probability"] == pytest.approx(want.probability, abs=2e-4)
    assert "answer" not in printed
