"""Duplicates, ambiguous questions, samples and lists."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from anchorscope.datasets import load_questions
from anchorscope.errors import UserError
from anchorscope.records import Question


def question(number: int, **changes: object) -> Question:
    base = Question(
        id=f"mine:test:{number}", dataset="mine", text=f"What is {number}?", answers=(str(number),)
    )
    return replace(base, **changes)  # pyright: ignore[reportArgumentType]


MANY = [question(number) for number in range(200)]


def test_a_limit_draws_the_same_questions_whatever_the_order_or_the_new_rows() -> None:
    small, large = load_questions(MANY, limit=20), load_questions(MANY, limit=90)
    everything = load_questions(MANY, limit=10_000)
    assert len(small) == 20
    assert large.questions[:20] == small.questions
    assert everything.questions[:90] == large.questions
    assert sorted(q.id for q in everything) == sorted(q.id for q in MANY)
    assert load_questions(MANY[::-1], limit=50) == load_questions(MANY, limit=50)
    new = [question(number) for number in range(200, 300)]
    after = load_questions([*new, *MANY]).questions
    assert tuple(q for q in after if q in set(MANY)) == everything.questions


def test_the_seed_decides() -> None:
    first = load_questions(MANY, limit=50, seed=0)
    assert first == load_questions(MANY, limit=50, seed=0)
    other = load_questions(MANY, limit=50, seed=1)
    assert 3 <= len(set(first.questions) & set(other.questions)) <= 25  # about 50 * 50 / 200


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "9"])
def test_bad_limits(limit: object) -> None:
    with pytest.raises(UserError) as caught:
        load_questions(MANY, limit=limit)  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == (
        f"limit must be a whole number of questions, at least 1, not {limit!r}. "
        "Leave it out to take them all."
    )


def test_of_duplicates_one_stays_and_the_rest_is_counted() -> None:
    twins = [question(1, id=f"mine:test:{key}", text=text) for key, text in TWINS.items()]
    for data in (twins, twins[::-1]):
        found = load_questions([*data, question(2)])
        assert {q.id for q in found} == {"mine:test:a", "mine:test:2"}
        assert found.dropped == {"duplicate": 2}


TWINS = {"b": "What is 1?", "a": "what  is 1", "c": "What is 1 ?"}


def test_the_same_text_with_other_answers_is_dropped_whole() -> None:
    twins = [question(1), question(3, text="What is 1?"), question(4, text="What is 1?")]
    found = load_questions([*twins, question(2)])
    assert [q.id for q in found] == ["mine:test:2"]
    assert found.dropped == {"ambiguous": 3}


def test_case_and_order_make_no_other_question_and_punctuation_inside_does() -> None:
    one = question(1, answers=("One", "1"))
    two = question(2, text=one.text, answers=("1", "one"))
    assert load_questions([one, two]).dropped == {"duplicate": 1}
    texts = ("What is C?", "What is C++?", "What is C#?")
    found = load_questions([question(n, text=text) for n, text in enumerate(texts)])
    assert (len(found), found.dropped) == (3, {})


def test_what_the_dataset_calls_ambiguous_is_dropped(tmp_path: Path) -> None:
    rows = [
        {"question": "What genre is Magic?", "answers": ["jazz"], "ambiguous": True},
        {"question": "What genre is Emma?", "answers": ["novel"], "ambiguous": False},
        {"question": "What genre is Faust?", "answers": ["play"]},
        {"question": "What genre is faust", "answers": ["Play"]},
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    found = load_questions(path)
    assert len(found) == 2
    assert found.dropped == {"ambiguous": 1, "duplicate": 1}


def test_a_list_keeps_its_questions_and_the_title_and_shots_of_a_known_dataset() -> None:
    found = load_questions(MANY)
    assert set(found.questions) == set(MANY)
    assert (found.name, found.title) == ("mine", "mine")
    whole = load_questions("atlas", limit=5)
    assert load_questions(list(whole)) == whole


BAD_LISTS = [
    ([], "The list of questions is empty. It needs at least one Question."),
    ([question(1), "Q?"], "Item 2 of the list is a str, not a Question."),
    (
        [question(1), question(2, dataset="other")],
        "The list has questions of 2 datasets: mine, other. Load each dataset by itself.",
    ),
    (
        [question(1), question(2, id="mine:test:1")],
        "Two questions of the list have the same id 'mine:test:1'.",
    ),
    (
        [question(1, answers=())],
        "Question 1 of the list needs an id, a dataset, a text and answers.",
    ),
    (
        [question(1, subjects=("two",))],
        "Question 1 of the list has the subject 'two', which does not stand in its text. "
        "A subject is an exact part of the text.",
    ),
]


@pytest.mark.parametrize(("data", "message"), BAD_LISTS)
def test_bad_lists(data: list, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_questions(data)
    assert str(caught.value) == message
