"""A detector's probabilities in the log of an Inspect evaluation."""

from __future__ import annotations

import math

import pytest
from kit.tiny import tiny_lm, tiny_tokenizer
from test_detect_score import QUESTIONS, make

from anchorscope.detect.prompts import Exchange
from anchorscope.models import load_model

inspect_ai = pytest.importorskip("inspect_ai", reason="the extra `inspect` is not installed")


def test_an_inspect_log_carries_the_detectors_scores(tmp_path):
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput
    from inspect_ai.solver import solver

    from anchorscope.detect.inspect_scorer import wrong_answer_probability

    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    model.lm.save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    detector = make(model)
    detector.save(tmp_path / "detector")
    answers = ["Rome", "It was Paris.", "I don't know", "Kanpur"]
    given = dict(zip(QUESTIONS, answers, strict=True))

    @solver
    def answered():
        async def solve(state, generate):
            state.output = ModelOutput.from_content("none", given[state.input_text])
            state.messages.append(state.output.message)
            return state

        return solve

    task = inspect_ai.Task(
        dataset=[Sample(input=question, target="x") for question in QUESTIONS],
        solver=answered(),
        scorer=wrong_answer_probability(str(tmp_path / "detector"), str(tmp_path / "model")),
    )
    (log,) = inspect_ai.eval(task, model=None, log_dir=str(tmp_path / "logs"), display="none")
    assert log.status == "success", log.error
    exchanges = [
        Exchange(question=question, answer=answer)
        for question, answer in zip(QUESTIONS, answers, strict=True)
    ]
    want = detector.score_answers(model, exchanges)
    for sample, one in zip(log.samples, want, strict=True):
        score = sample.scores["wrong_answer_probability"]
        assert score.answer == one.answer_entity
        assert score.metadata["outcome"] == one.outcome
        if math.isnan(one.probability):
            assert math.isnan(score.value) and score.explanation.startswith("no answer: ")
        else:
            assert score.value == pytest.approx(one.probability, abs=2e-4)
