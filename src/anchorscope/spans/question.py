"""Find the exact question tokens as character spans, and measure how far two finders agree.

A finder marks the subject: from the dataset (`given`), by rules, by the model under test itself
(text in, text out), by a spaCy pipeline, or the whole question.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from anchorscope.config import Finder
from anchorscope.datasets.text import normalised
from anchorscope.errors import UserError
from anchorscope.records import Question, Span
from anchorscope.run_folder import table_columns
from anchorscope.spans.characters import STOP, longest, merged, occurrences, overlap, trimmed
from anchorscope.spans.rules import property_spans, rules_spans

if TYPE_CHECKING:
    from spacy.language import Language

# --- Finders ---


SpansById = Mapping[str, tuple[Span, ...]]


@dataclass(frozen=True, kw_only=True)
class QuestionSpans:
    """The spans of one question, subject and property, and the finder of the subject.

    The finder is never "auto". `property_spans` are the spans that name the property.
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
) -> list[QuestionSpans]:
    """Find the exact question spans of each question with the chosen finder.

    `auto` takes the dataset's subjects where it has them, else the rules, else the whole
    question. Every finder looks for the subject; the words that name the property asked for belong
    to E_Q as well, and are found in one way for all finders (`property_spans`).
    `generate` is for "model" alone.
    """
    if finder == "auto":
        return [_first_found(question) for question in questions]
    if finder == "model":
        assert generate is not None
        replies = generate([model_prompt(question.text) for question in questions])
        spans = [read_reply(q.text, reply) for q, reply in zip(questions, replies, strict=True)]
    elif finder == "spacy":
        spans = spacy_spans(questions)
    else:
        spans = [_TEXT_FINDERS[finder](question) for question in questions]
    return [
        _with_property(question, finder, marked)
        for question, marked in zip(questions, spans, strict=True)
    ]


def _with_property(question: Question, finder: str, subject: tuple[Span, ...]) -> QuestionSpans:
    """Add the property's spans to the subject's; nothing if no subject was found."""
    more = property_spans(question.text, subject) if subject else ()
    spans = tuple(sorted([*subject, *more]))
    return QuestionSpans(id=question.id, finder=finder, spans=spans, property_spans=more)


def given_spans(question: Question) -> tuple[Span, ...]:
    """Find every occurrence of the question's own subjects."""
    spans: list[Span] = []
    for subject in question.subjects:
        found = occurrences(question.text, subject)
        if not found and subject.strip() and subject in question.text:  # inside a longer word
            at = question.text.index(subject)
            found = (Span(at, at + len(subject)),)
        spans += found
    return merged(spans)


def all_spans(question: Question) -> tuple[Span, ...]:
    """Mark the whole question, without white space and punctuation at its ends."""
    return merged([trimmed(question.text, Span(0, len(question.text)))])


_TEXT_FINDERS: dict[str, Callable[[Question], tuple[Span, ...]]] = {
    "given": given_spans,
    "rules": lambda question: rules_spans(question.text),
    "all": all_spans,
}


def _first_found(question: Question) -> QuestionSpans:
    for finder, find in _TEXT_FINDERS.items():
        if spans := find(question):
            return _with_property(question, finder, spans)
    return QuestionSpans(id=question.id, finder="all", spans=())


def spans_table(questions: Sequence[Question], found: Sequence[QuestionSpans] = ()) -> pd.DataFrame:
    """Tabulate how far the finders without a model agree, by dataset; reuse the spans `found`."""
    finders: tuple[Finder, ...] = ("given", "rules", "all")
    by_finder = {}
    for name in finders:
        spans = {each.id: each.spans for each in found if each.finder == name}
        others = [question for question in questions if question.id not in spans]
        by_finder[name] = spans | {q.id: q.spans for q in find_spans(others, finder=name)}
    return agreement(questions, by_finder)


def agreement(
    questions: Sequence[Question], found_by_finder: Mapping[str, SpansById]
) -> pd.DataFrame:
    """Tabulate how far each pair of finders agrees on each dataset.

    jaccard: mean over questions of shared / all marked characters; identical: the share of
    questions marked alike. Both are NaN where no question has both.
    """
    rows = []
    for dataset in dict.fromkeys(question.dataset for question in questions):
        ids = [question.id for question in questions if question.dataset == dataset]
        for a, b in combinations(found_by_finder, 2):
            both = [(found_by_finder[a].get(id), found_by_finder[b].get(id)) for id in ids]
            scores = [overlap(one, other) for one, other in both if one and other]
            n = len(scores)
            jaccard = float(np.mean(scores)) if n else np.nan
            identical = float(np.mean([s == 1 for s in scores])) if n else np.nan
            rows.append((dataset, a, b, n, jaccard, identical))
    return pd.DataFrame(rows, columns=list(table_columns.SPANS))


# --- The finder `model` ---


Generate = Callable[[Sequence[str]], Sequence[str]]
EXAMPLES = (
    ("Who was the director of The Third Man?", "director; The Third Man"),
    ("what is the longest river in south america", "longest river; south america"),
    ("Which mountain is higher, Ben Nevis or Snowdon?", "mountain; Ben Nevis; Snowdon"),
    ("In what year did the Berlin Wall fall?", "year; Berlin Wall"),
)


def model_prompt(question: str) -> str:
    """Make the few-shot prompt that asks a model for the words a question is about."""
    head = "Copy from each question the words that name what it asks about, separated by ';'.\n\n"
    shots = "".join(f"Question: {text}\nWords: {words}\n\n" for text, words in EXAMPLES)
    return f"{head}{shots}Question: {' '.join(question.split())}\nWords:"


def read_reply(text: str, reply: str) -> tuple[Span, ...]:
    """Find the pieces of the reply's first line in the question."""
    line = next(iter(reply.strip().splitlines()), "")
    spans: list[Span] = []
    for piece in dict.fromkeys(line.split(";")):
        # A name may hold a comma, so the piece is tried whole first.
        whole = _find(text, piece)
        spans += whole or (span for part in piece.split(",") for span in _find(text, part))
    return merged(spans)


def _find(text: str, piece: str) -> tuple[Span, ...]:
    bare = re.sub(r"^[\s\"'“‘*\-]+|[\s\"'”’*.?!,]+$", "", piece)
    return occurrences(text, bare, any_case=True)


# --- The finder `spacy`: entities and noun chunks ---


PIPELINE = "en_core_web_sm"


def spacy_spans(
    questions: Sequence[Question], *, nlp: Language | None = None
) -> list[tuple[Span, ...]]:
    """Find each question's entities and noun chunks with spaCy, without leading stop words."""
    pipeline = nlp or load_pipeline()
    docs = pipeline.pipe(question.text for question in questions)
    return [merged(_entities_and_chunks(doc)) for doc in docs]


def load_pipeline(name: str = PIPELINE) -> Language:
    """Load a spaCy pipeline; a UserError names the command that installs it."""
    try:
        import spacy
    except ImportError:
        raise UserError(
            "The finder 'spacy' needs spaCy: pip install 'anchorscope[spans]', "
            f"then python -m spacy download {name}."
        ) from None
    try:
        return spacy.load(name)
    except OSError:
        raise UserError(
            f"The spaCy pipeline '{name}' is not installed: python -m spacy download {name}."
        ) from None


def _entities_and_chunks(doc: Any) -> Iterator[Span]:
    # Noun chunks need a parse; a pipeline without one still has its entities.
    chunks = list(doc.noun_chunks) if doc.has_annotation("DEP") else []
    for piece in [*doc.ents, *chunks]:
        tokens = list(piece)
        if piece in chunks:
            while tokens and tokens[0].lower_ in STOP:
                tokens = tokens[1:]
        if tokens:
            stop = tokens[-1].idx + len(tokens[-1])
            yield trimmed(doc.text, Span(tokens[0].idx, stop))


# --- The entity of a question ---


_ARTICLE = re.compile(r"(?:the|an?)\s+(?=\S)")


def entity_of(question: Question, spans: QuestionSpans) -> str:
    """Name the entity of a question, the unit of folds and bootstraps.

    The dataset's own where it names one. Else the subject's longest span without case, white space
    and a leading article: it depends on this question alone, so questions added later move no fold.
    The finder "all" marks whole questions, not entities: then the spans of "auto" are taken.
    """
    if question.entity and question.entity != normalised(question.text):
        return question.entity
    marked = find_spans([question], finder="auto")[0] if spans.finder == "all" else spans
    if not marked.subject_spans:
        return normalised(question.text)
    start, stop = longest(marked.subject_spans)
    name = _ARTICLE.sub("", normalised(question.text[start:stop]), count=1)
    return name or normalised(question.text)
