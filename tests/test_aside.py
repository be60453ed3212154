"""What a process of its own says of questions and answers: what would be said here, always."""

from __future__ import annotations

import os
from functools import partial

import psutil
import pytest

from anchorscope.answers.judge import judge
from anchorscope.errors import UserError
from anchorscope.pipeline.asking.aside import Aside
from anchorscope.pipeline.prompts import Prompted
from anchorscope.records import Answer, Question
from anchorscope.spans.question import QuestionSpans

SAID = {"Paris": "right", "London": "wrong", "I don't know": "abstain", "not Paris": "wrong"}


def asked(given: str | None = None, answers: tuple[str, ...] = ("Paris",)) -> Prompted:
    question = Question(
        id="d:1", dataset="d", text="What is the capital of France?", answers=answers
    )
    spans = QuestionSpans(id="d:1", finder="all", spans=())
    return Prompted(
        question=question, spans=spans, prompt_ids=(1,), question_tokens=(0,), exact_question=(0,),
        verdict=given,
    )  # fmt: skip


def answer(text: str) -> Answer:
    return Answer(
        id="d:1", text=text, token_ids=(1,), log_probs=(0.0,), first_entropy=0.0, finished=True
    )


@pytest.mark.parametrize("apart", [True, False])
def test_verdicts_are_the_judges_and_those_of_a_file(apart):
    answers = [answer(text) for text in SAID]
    with Aside(apart=apart) as aside:
        assert aside.judge([asked()] * 4, answers)() == list(SAID.values())
        assert aside.judge([asked("wrong")] * 4, answers)() == ["wrong"] * 4
        assert aside.judge([], [])() == []
    assert [judge(text, ["Paris"]) for text in SAID] == list(SAID.values())


@pytest.mark.parametrize("apart", [True, False])
def test_a_question_that_cannot_be_judged_is_a_sentence(apart):
    with Aside(apart=apart) as aside, pytest.raises(UserError, match="at least one"):
        aside.judge([asked(answers=())], [answer("Paris")])()


def test_a_judge_who_is_killed_is_stood_in_for():
    with Aside(apart=True) as aside:
        process = psutil.Process(aside._process.begin(os.getpid)())
        assert process.pid != os.getpid()
        process.kill()
        process.wait(30)
        for _ in range(2):
            assert aside.judge([asked()], [answer("Paris")])() == ["right"]


def test_the_process_never_imports_torch():
    with Aside(apart=True) as aside:
        assert aside.judge([asked()], [answer("Paris")])() == ["right"]
        # Text, not a function of this file: whoever is given that imports this file.
        here = partial(eval, "'torch' in __import__('sys').modules")
        assert aside._process.begin(here)() is False
