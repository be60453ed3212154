"""The judge on a table of hard cases, one verdict each; which verdicts are in doubt, and why."""

from __future__ import annotations

import random

import pytest
from kit.cases import parts, read_cases

from anchorscope.answers.judge import judge
from anchorscope.answers.normalise import plain, words
from anchorscope.answers.verdicts import doubt_of, doubtful
from anchorscope.errors import UserError
from anchorscope.records import Answer, Question, Sample, Span

CASES = [(a, parts(b), q, verdict) for a, b, q, verdict in read_cases("judge")]


@pytest.mark.parametrize(
    ("answer", "alias"),
    [
        ("New Yorker", "New York"),
        ("He was a New Yorker all his life", "New York"),
        ("Anew York", "New York"),
        ("The Fifth Elementary", "The Fifth Element"),
        ("25 December 19721", "25 December 1972"),
        ("It was George Washingtonian of him", "George Washington"),
        ("Mount Everestine Peak", "Mount Everest Peak"),
    ],
)
def test_alias_of_several_words_inside_longer_words_is_wrong(answer, alias):
    assert judge(alias, [alias]) == "right"
    assert judge(answer, [alias]) == "wrong"


@pytest.mark.parametrize(("answer", "aliases", "question", "verdict"), CASES)
def test_hard_cases(answer: str, aliases: list[str], question: str, verdict: str):
    assert judge(answer, aliases, question=question) == verdict


def test_every_alias_is_right_for_itself():
    for _, aliases, question, _ in CASES:
        for alias in aliases:
            assert judge(alias, aliases, question=question) == "right"


def test_no_alias_is_refused():
    with pytest.raises(UserError, match="at least one"):
        judge("Paris", [])


def test_words_of_a_date_keep_the_day_apart_from_counts():
    texts = [word.text for word in words("on the 14th of December 1972")]
    assert texts == ["on", "1972", "december", "day14"]


def test_plain_drops_apostrophes_and_punctuation():
    assert plain("I don’t — know!") == "i dont know"


SMALL = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
]  # fmt: skip
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def spelled(n: int) -> str:
    """The number in English words, without "and"."""
    for scale, name in (
        (10**9, "billion"),
        (10**6, "million"),
        (1000, "thousand"),
        (100, "hundred"),
    ):
        if n >= scale:
            rest = f" {spelled(n % scale)}" if n % scale else ""
            return f"{spelled(n // scale)} {name}{rest}"
    if n < 20:
        return SMALL[n]
    return TENS[n // 10] + (f"-{SMALL[n % 10]}" if n % 10 else "")


def test_numbers_are_read_as_they_are_spelled():
    drawn = random.Random(0)
    numbers = [*range(2500), *(drawn.randrange(10 ** drawn.randint(4, 12)) for _ in range(500))]
    for n in numbers:
        assert [word.text for word in words(spelled(n))] == [str(n)]
    assert [word.text for word in words("12345678901234567890")] == ["12345678901234567890"]


def test_an_answer_without_words_to_a_yes_or_no_question_is_wrong():
    assert judge("👍", ["yes"], question="Is it?") == "wrong"


# --- Verdicts in doubt ---


DOUBTS = [  # answer, accepted, what the judge says, why that is in doubt
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


def sample(text: str, accepted: str, verdict: str, id: str = "q") -> Sample:
    question = Question(id=id, dataset="d", text="What is it?", answers=(accepted,), entity=id)
    answer = Answer(
        id=id, text=text, token_ids=(1,), log_probs=(-1.0,), first_entropy=1.0, finished=True
    )
    return Sample(
        question=question, answer=answer, verdict=verdict, finder="given", spans=(),  # type: ignore[arg-type]
        answer_span=Span(0, len(text)), prompt_ids=(0,), question_tokens=(0,),
        exact_question=(0,), exact_answer=(1,),
    )  # fmt: skip


@pytest.mark.parametrize(("text", "accepted", "verdict", "why"), DOUBTS, ids=[c[0] for c in DOUBTS])
def test_the_reason_is_named(text, accepted, verdict, why):
    assert judge(text, [accepted], question="What is it?") == verdict  # the case is a real one
    doubt = doubt_of(sample(text, accepted, verdict))
    assert (doubt and doubt.why) == why


def test_the_most_doubtful_come_first():
    samples = [sample(text, gold, verdict, id=str(n)) for n, (text, gold, verdict, _) in
               enumerate(DOUBTS)]  # fmt: skip
    pairs = doubtful(samples)
    assert [doubt.doubt for _, doubt in pairs] == sorted((d.doubt for _, d in pairs), reverse=True)
    assert len(pairs) == sum(why is not None for *_, why in DOUBTS)
    assert all(0 < doubt.doubt < 1 for _, doubt in pairs)
