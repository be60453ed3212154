"""Which verdicts are worth reading, why, and in which order."""

from __future__ import annotations

import pytest

from anchorscope.answers.judge import judge
from anchorscope.answers.verdicts import doubt_of, doubtful
from anchorscope.records import Answer, Question, Sample, Span

CASES = [  # answer, accepted, what the judge says, why that is in doubt
    ("Nigeria", "Niger", "wrong", "holds 'Niger' inside a word or across words"),
    ("Naiya", "Naira", "wrong", "spelled nearly like 'Naira'"),
    ("not Paris", "Paris", "wrong", "holds the accepted answer 'Paris'"),
    ("1972", "14 December 1972", "wrong", "has a number of '14 December 1972'"),
    ("1989", "1990", "wrong", "a number near that of '1990'"),
    ("George Washington", "Washington Irving", "wrong",
     "shares 'washington' with 'Washington Irving'"),
    ("He is, as far as is known, unknown", "Ada Lovelace", "wrong", "may decline to answer"),
    ("North America", "America", "right", "says more than 'America'"),
    ("It may not be Paris, though Paris fits", "Paris", "right", "hedges or denies: 'not'"),
    ("Paris 7", "Paris", "right", "names another number beside 'Paris'"),
    ("Of iron: Fe", "Fe", "right", "the accepted answer 'Fe' is very short"),
    ("I don't know, maybe Paris", "Paris", "abstain", "holds the accepted answer 'Paris'"),
    ("I don't know", "Paris", "abstain", None),
    ("Paris", "Paris", "right", None),
    ("Rome", "Paris", "wrong", None),
]  # fmt: skip


def sample(said: str, accepted: str, verdict: str, id: str = "q") -> Sample:
    question = Question(id=id, dataset="d", text="What is it?", answers=(accepted,), entity=id)
    answer = Answer(
        id=id, text=said, token_ids=(1,), log_probs=(-1.0,), first_entropy=1.0, finished=True
    )
    return Sample(
        question=question, answer=answer, verdict=verdict, finder="given", spans=(),  # type: ignore[arg-type]
        answer_span=Span(0, len(said)), prompt_ids=(0,), question_tokens=(0,),
        exact_question=(0,), exact_answer=(1,),
    )  # fmt: skip


@pytest.mark.parametrize(("said", "accepted", "verdict", "why"), CASES, ids=[c[0] for c in CASES])
def test_the_reason_is_named(said, accepted, verdict, why):
    assert judge(said, [accepted], question="What is it?") == verdict  # the case is a real one
    doubt = doubt_of(sample(said, accepted, verdict))
    assert (doubt and doubt.why) == why


def test_the_most_doubtful_come_first_and_no_more_than_asked_for():
    samples = [sample(said, gold, verdict, id=str(n)) for n, (said, gold, verdict, _) in
               enumerate(CASES)]  # fmt: skip
    pairs = doubtful(samples)
    assert [doubt.doubt for _, doubt in pairs] == sorted((d.doubt for _, d in pairs), reverse=True)
    assert len(pairs) == sum(why is not None for *_, why in CASES)
    assert doubtful(samples, most=3) == pairs[:3]
    assert all(0 < doubt.doubt < 1 for _, doubt in pairs)
