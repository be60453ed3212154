"""Answers judged in a process of their own: the verdicts of the judge beside it, always."""

from __future__ import annotations

import os

import psutil
import pytest

from anchorscope.answers.judge import judge
from anchorscope.errors import UserError
from anchorscope.pipeline.asking.judging import Judging
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
    with Judging(apart=apart) as judging:
        assert judging.begin([asked()] * 4, answers)() == list(SAID.values())
        assert judging.begin([asked("wrong")] * 4, answers)() == ["wrong"] * 4
        assert judging.begin([], [])() == []
    assert [judge(text, ["Paris"]) for text in SAID] == list(SAID.values())


@pytest.mark.parametrize("apart", [True, False])
def test_a_question_that_cannot_be_judged_is_a_sentence(apart):
    with Judging(apart=apart) as judging, pytest.raises(UserError, match="at least one"):
        judging.begin([asked(answers=())], [answer("Paris")])()


def test_a_judge_who_is_killed_is_stood_in_for():
    with Judging(apart=True) as judging:
        process = psutil.Process(judging._process.begin(os.getpid)())
        assert process.pid != os.getpid()
        process.kill()
        process.wait(30)
        for _ in range(2):
            assert judging.begin([asked()], [answer("Paris")])() == ["right"]
