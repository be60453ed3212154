"""Belief by layer and pathway of scored answers, against a plain forward pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kit.plain import plain_states
from scipy.special import expit
from test_detect_score import QUESTIONS, SHOTS, WIDTH, make

from anchorscope.answers.generate import answer_offsets
from anchorscope.detect.deployed.beliefs import Beliefs
from anchorscope.detect.deployed.detector import Detector
from anchorscope.detect.deployed.located import unknown_answer
from anchorscope.models.prompts import make_prompt
from anchorscope.spans.answer import answer_span
from anchorscope.spans.characters import tokens_of


def with_beliefs(model) -> Detector:
    """A detector whose beliefs are made up too: the layer's own number as the logit's intercept."""
    rng = np.random.default_rng(2)
    coef = rng.standard_normal((model.blocks, WIDTH)).astype(np.float32)
    gate = rng.standard_normal(WIDTH).astype(np.float32)
    beliefs = Beliefs(coef=coef, intercept=np.arange(4.0), gate=gate, gate_layer=2)
    return replace(make(model), beliefs=beliefs)


def check_beliefs(model, detector, one, answer_ids) -> None:
    """Belief and pathway of a scored answer against a plain pass over prompt and answer."""
    answer = unknown_answer(one.answer, answer_ids, 0)
    span = answer_span(answer.text, question=one.question)
    last = tokens_of([span], answer_offsets(model, answer))[-1]
    prompt = make_prompt(model, one.question, shots=SHOTS, style="text").ids
    states = plain_states(model, [[*prompt, *answer_ids[: last + 1]]])[0].double().numpy()
    want = expit((states * detector.beliefs.coef).sum(axis=1) + np.arange(4.0))
    assert list(one.belief) == pytest.approx(want.tolist(), abs=5e-3)
    q = expit(states[1] @ detector.beliefs.gate)
    assert one.predicted_pathway == ("Q" if q > 0.5 else "A")
    assert one.predicted_pathway_probability == pytest.approx(max(q, 1 - q), abs=5e-3)


def test_belief_and_pathway_are_those_of_a_plain_pass(tiny_llama):
    detector = with_beliefs(tiny_llama)
    answers = ["William Shakespeare", "India", "blue", "me"]
    for one in detector.score(tiny_llama, QUESTIONS, answer=answers):
        check_beliefs(
            tiny_llama, detector, one, tiny_llama.tokenizer(f" {one.answer}")["input_ids"]
        )
