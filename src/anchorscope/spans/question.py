"""Finders of the exact question tokens, as character spans of the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from anchorscope.errors import UserError, unknown
from anchorscope.records import Question, Span
from anchorscope.spans.model import Generate, model_spans
from anchorscope.spans.parsed import spacy_spans
from anchorscope.spans.rules import rules_spans
from anchorscope.spans.text import merged, occurrences, trimmed

if TYPE_CHECKING:
    from spacy.language import Language

Finder = Literal["auto", "given", "rules", "model", "spacy", "all"]


@dataclass(frozen=True, kw_only=True)
class Found:
    """The spans of one question and the finder that gave them (never "auto")."""

    id: str
    finder: str
    spans: tuple[Span, ...]


def find_spans(
    questions: Sequence[Question],
    *,
    finder: Finder,
    generate: Generate | None = None,
    nlp: Language | None = None,
) -> list[Found]:
    """What the finder marks in each question, in the order of the questions.

    `auto` takes the dataset's subjects where it has them, else the rules, else the whole
    question. `generate` is for "model" alone, `nlp` (a loaded pipeline) for "spacy" alone.
    """
    if finder not in get_args(Finder):
        raise unknown("finder of exact question tokens", finder, get_args(Finder))
    if finder == "auto":
        return [_auto(question) for question in questions]
    if finder == "model":
        if generate is None:
            raise UserError(
                "The finder 'model' needs the model that is asked: pass generate=, a function "
                "from prompts to texts, or choose another finder."
            )
        spans = model_spans(questions, generate)
    elif finder == "spacy":
        spans = spacy_spans(questions, nlp=nlp)
    else:
        spans = [_TEXT_FINDERS[finder](question) for question in questions]
    return [
        Found(id=question.id, finder=finder, spans=found)
        for question, found in zip(questions, spans, strict=True)
    ]


def given_spans(question: Question) -> tuple[Span, ...]:
    """Every occurrence of each of the question's subjects."""
    found: list[Span] = []
    for subject in question.subjects:
        found += occurrences(question.text, subject) or _anywhere(question.text, subject)
    return merged(found)


def all_spans(question: Question) -> tuple[Span, ...]:
    """The whole question without white space and punctuation at its ends."""
    return merged([trimmed(question.text, Span(0, len(question.text)))])


def _anywhere(text: str, subject: str) -> list[Span]:
    """The subject inside longer words, for subjects that stand on no word border."""
    at = text.find(subject) if subject.strip() else -1
    return [Span(at, at + len(subject))] if at >= 0 else []


_TEXT_FINDERS: dict[str, Callable[[Question], tuple[Span, ...]]] = {
    "given": given_spans,
    "rules": lambda question: rules_spans(question.text),
    "all": all_spans,
}


def _auto(question: Question) -> Found:
    for finder, find in _TEXT_FINDERS.items():
        if spans := find(question):
            return Found(id=question.id, finder=finder, spans=spans)
    return Found(id=question.id, finder="all", spans=())
