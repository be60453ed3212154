"""Finders of the exact question tokens, as character spans, and how far two of them agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, get_args

import numpy as np
import pandas as pd

from anchorscope.config import Finder
from anchorscope.errors import UserError, unknown
from anchorscope.records import Question, Span
from anchorscope.run_folder import table_columns
from anchorscope.spans.asked_property import property_spans
from anchorscope.spans.by_model import Generate, model_spans
from anchorscope.spans.by_rules import rules_spans
from anchorscope.spans.by_spacy import spacy_spans
from anchorscope.spans.characters import merged, occurrences, overlap, trimmed

if TYPE_CHECKING:
    from spacy.language import Language

SpansById = Mapping[str, tuple[Span, ...]]


@dataclass(frozen=True, kw_only=True)
class QuestionSpans:
    """The spans of one question, subject and property, and the finder of the subject.

    The finder is never "auto". `property_spans` are those of the spans that name the property.
    """

    id: str
    finder: str
    spans: tuple[Span, ...]  # E_Q
    property_spans: tuple[Span, ...] = ()

    @property
    def subject_spans(self) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span not in self.property_spans)


def find_spans(
    questions: Sequence[Question],
    *,
    finder: Finder,
    generate: Generate | None = None,
    nlp: Language | None = None,
) -> list[QuestionSpans]:
    """What the finder marks in each question, in the order of the questions.

    `auto` takes the dataset's subjects where it has them, else the rules, else the whole
    question. Every finder looks for the subject; the words that name the asked-about property
    belong to E_Q as well, and are found in one way for all of them (`asked_property`).
    `generate` is for "model" alone, `nlp` (a loaded pipeline) for "spacy" alone.
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
        _with_property(question, finder, marked)
        for question, marked in zip(questions, spans, strict=True)
    ]


def _with_property(question: Question, finder: str, subject: tuple[Span, ...]) -> QuestionSpans:
    """The subject's spans and the property's; nothing where no subject was found."""
    more = property_spans(question.text, subject) if subject else ()
    spans = tuple(sorted([*subject, *more]))
    return QuestionSpans(id=question.id, finder=finder, spans=spans, property_spans=more)


def given_spans(question: Question) -> tuple[Span, ...]:
    """Every occurrence of each of the question's subjects."""
    spans: list[Span] = []
    for subject in question.subjects:
        spans += occurrences(question.text, subject) or _anywhere(question.text, subject)
    return merged(spans)


def all_spans(question: Question) -> tuple[Span, ...]:
    """The whole question without white space and punctuation at its ends."""
    return merged([trimmed(question.text, Span(0, len(question.text)))])


def _anywhere(text: str, subject: str) -> list[Span]:
    """The subject inside longer words, for subjects that are not on word borders."""
    at = text.find(subject) if subject.strip() else -1
    return [Span(at, at + len(subject))] if at >= 0 else []


_TEXT_FINDERS: dict[str, Callable[[Question], tuple[Span, ...]]] = {
    "given": given_spans,
    "rules": lambda question: rules_spans(question.text),
    "all": all_spans,
}


def _auto(question: Question) -> QuestionSpans:
    for finder, find in _TEXT_FINDERS.items():
        if spans := find(question):
            return _with_property(question, finder, spans)
    return QuestionSpans(id=question.id, finder="all", spans=())


def agreement(
    questions: Sequence[Question], found_by_finder: Mapping[str, SpansById]
) -> pd.DataFrame:
    """One row per dataset and pair of finders, over the questions in which both marked something.

    jaccard: mean over questions of shared / all marked characters; identical: the share of
    questions marked alike. Both are NaN where no question has both.
    """
    rows = []
    for dataset in dict.fromkeys(question.dataset for question in questions):
        ids = [question.id for question in questions if question.dataset == dataset]
        for a, b in combinations(found_by_finder, 2):
            scores = _scores(ids, found_by_finder[a], found_by_finder[b])
            n = len(scores)
            jaccard = float(np.mean(scores)) if n else np.nan
            identical = float(np.mean([s == 1 for s in scores])) if n else np.nan
            rows.append((dataset, a, b, n, jaccard, identical))
    return pd.DataFrame(rows, columns=list(table_columns.SPANS))


def _scores(ids: Sequence[str], a: SpansById, b: SpansById) -> list[float]:
    return [overlap(a[i], b[i]) for i in ids if a.get(i) and b.get(i)]
