"""Questions about one thing have one entity and one fold, whether their dataset names it or not."""

from __future__ import annotations

import pytest

from anchorscope.config import Finder
from anchorscope.datasets import load_questions
from anchorscope.datasets.text import normalised
from anchorscope.probes.folds import entity_folds
from anchorscope.records import Question, Span
from anchorscope.spans.question import QuestionSpans, entity_of, find_spans


def entity(text: str, *, named: str = "", finder: Finder = "auto") -> str:
    question = Question(id="d:test:1", dataset="d", text=text, answers=("x",),
                        entity=named or normalised(text))  # fmt: skip
    (spans,) = find_spans([question], finder=finder)
    return entity_of(question, spans)


def marked(text: str, *parts: str) -> str:
    """The entity of a question in which a finder marked these parts."""
    question = Question(id="d:test:1", dataset="d", text=text, answers=("x",))
    spans = tuple(Span(text.index(part), text.index(part) + len(part)) for part in parts)
    return entity_of(question, QuestionSpans(id=question.id, finder="model", spans=spans))


def test_two_questions_about_one_thing_are_one_entity():
    asked = ["Who wrote The Old Curiosity Shop?", "When was the Old Curiosity Shop published?"]
    assert len({entity(text) for text in asked}) == 1
    assert "old curiosity shop" in entity(asked[0])


def test_what_a_dataset_names_stays():
    assert entity("Who wrote Emma?", named="jane austen's emma") == "jane austen's emma"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [(["The  Eiffel\tTower"], "eiffel tower"), (["Paris", "the Louvre Museum"], "louvre museum"),
     (["An Inspector Calls"], "inspector calls"), (["A"], "a"), (["Annie"], "annie"),
     (["Rome", "Oslo"], "rome")],
)  # fmt: skip
def test_the_longest_span_without_case_space_and_article(parts, expected):
    assert marked(" and ".join(parts) + " are where?", *parts) == expected


def test_a_finder_that_marks_whole_questions_names_no_entity():
    asked = "In which city is the Tower of London located?"
    assert entity(asked, finder="all") == entity(asked) != normalised(asked)


def test_a_question_in_which_nothing_is_marked_is_its_own_entity():
    assert marked("Why?") == "why"


def test_added_questions_move_no_fold(tmp_path):
    file = tmp_path / "own.csv"
    rows = [f"Who wrote Book Number {i}?,x\nWhen was Book Number {i} printed?,x" for i in range(40)]
    folds = []
    for kept in (rows, [*rows[::-1], "Who wrote Another Book?,x"]):
        file.write_text("\n".join(["question,answer", *kept]))
        questions = load_questions(file, limit=None).questions
        spans = find_spans(questions, finder="auto")
        names = [entity_of(q, of) for q, of in zip(questions, spans, strict=True)]
        fold = entity_folds(names)
        folds.append({q.text: int(f) for q, f in zip(questions, fold, strict=True)})
    few, more = folds
    assert more == few | {"Who wrote Another Book?": more["Who wrote Another Book?"]}
    for i in range(40):
        assert few[f"Who wrote Book Number {i}?"] == few[f"When was Book Number {i} printed?"]


def test_the_property_is_not_what_a_question_is_about():
    """Folds keep questions about one thing together; "screenwriter" is longer than "Up"."""
    question = Question(id="d:1", dataset="d", text="Who was the screenwriter of Up?", answers=())
    [found] = find_spans([question], finder="rules")
    assert len(found.spans) == 2 and entity_of(question, found) == "up"
