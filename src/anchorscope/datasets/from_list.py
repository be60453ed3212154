"""Questions that are values already: a list of `Question`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anchorscope.datasets.source import Draft, Source
from anchorscope.errors import UserError
from anchorscope.records import Question


def from_list(
    questions: Sequence[object], sources: Mapping[str, Source]
) -> tuple[Source, list[Draft]]:
    """The one dataset that the questions are of, and they themselves as drafts."""
    if not questions:
        raise UserError("The list of questions is empty. It needs at least one Question.")
    checked = [_checked(one, number) for number, one in enumerate(questions, 1)]
    names = sorted({question.dataset for question in checked})
    if len(names) > 1:
        raise UserError(
            f"The list has questions of {len(names)} datasets: {', '.join(names)}. "
            "Load each dataset by itself."
        )
    _check_ids(checked)
    source = sources.get(names[0]) or Source(name=names[0], title=names[0])
    return source, [Draft(question) for question in checked]


def _checked(one: object, number: int) -> Question:
    if not isinstance(one, Question):
        raise UserError(f"Item {number} of the list is a {type(one).__name__}, not a Question.")
    if not one.id or not one.dataset or not one.text.strip() or not one.answers:
        raise UserError(
            f"Question {number} of the list needs an id, a dataset, a text and answers."
        )
    for subject in one.subjects:
        if not subject or subject not in one.text:
            raise UserError(
                f"Question {number} of the list has the subject '{subject}', which does not stand "
                "in its text. A subject is an exact part of the text."
            )
    return one


def _check_ids(questions: Sequence[Question]) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise UserError(f"Two questions of the list have the same id '{question.id}'.")
        seen.add(question.id)
