"""Find what an answer claims: its sentences, the entities in each, and their tokens.

Prose, Markdown lists, JSON (bare or in a code fence) and an opening such as "Sure!" are understood.
Code claims nothing that is read here. No gold answer is looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anchorscope.answers.generate import answer_offsets
from anchorscope.answers.judge import is_abstention
from anchorscope.models import Model
from anchorscope.records import Answer, Span
from anchorscope.spans.answer import ABBREVIATION, COPULA, SENTENCE_END, answer_span
from anchorscope.spans.characters import STOP, WORD, merged, plain_word, tokens_of, trimmed

_FENCE = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)
_OPENING = re.compile(
    r"(?:sure(?: thing)?|certainly|of course|absolutely|okay|ok|yes, of course|great question|"
    r"good question|happy to help|no problem|here (?:is|are)[^.:!\n]*|here['’]s[^.:!\n]*)"
    r"\s*(?:[!.,:]|\n|$)\s*",
    re.IGNORECASE,
)
_JSON_PART = re.compile(
    r'"(?:[^"\\]|\\.)*"(?P<key>\s*:)?|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\btrue\b|\bfalse\b'
)
_LINE = re.compile(r"[^\n]+")
_MARK = re.compile(r"\s*(?:[-*+•]\s+|\d{1,3}[.)]\s+|#{1,6}\s+|>\s*)*")
_NAME = re.compile(
    r"[^\W\da-z_][\w’'-]*(?:\s+(?:(?:of|the|de|la|von|van)\s+)*[^\W\da-z_][\w’'-]*)*|\d(?:[\d.,]*\d)?"
)


class Sentence(NamedTuple):
    """A sentence, or a value of JSON, with the entities it claims; one at least."""

    span: Span
    entities: tuple[Span, ...]


def answer_parts(text: str, *, question: str = "", every: bool = True) -> list[Sentence]:
    """The sentences of an answer that claim something, in the order of the text.

    Without `every`, the first one alone, with the one entity that a run reads of a short answer.
    """
    spans = [part for region in _regions(text) for part in _split(text, *region)]
    if not every or len(spans) == 1:
        return [_whole(text, *spans[0], question)] if spans else []
    return [
        Sentence(span, (span,) if value else _entities(text, span, question))
        for span, value in spans
    ]


@dataclass(frozen=True, kw_only=True)
class Entity:
    """An entity of an answer: its characters, its tokens, and the sentence it is in."""

    span: Span
    tokens: tuple[int, ...]  # E_A, counted from the answer's first token; one at least
    sentence: Span


@dataclass(frozen=True, kw_only=True)
class LocatedAnswer:
    """An answer with its entities found in it; none where it names nothing."""

    question: str
    answer: Answer
    entities: tuple[Entity, ...]
    own: bool = False  # written by the model just now, as the answers that it was trained on


def locate_answer(
    model: Model, question: str, answer: Answer, *, every: bool = False
) -> LocatedAnswer:
    """The answer with its entity found as in a run, without a gold answer; or `every` entity."""
    offsets, found = answer_offsets(model, answer), []
    for sentence, spans in answer_parts(answer.text, question=question, every=every):
        for span in spans:
            if tokens := tokens_of([span], offsets):
                found.append(Entity(span=span, tokens=tokens, sentence=sentence))
    return LocatedAnswer(question=question, answer=answer, entities=tuple(found))


def unknown_answer(text: str, ids: Sequence[int], number: int) -> Answer:
    """An answer whose token probabilities are not known."""
    return Answer(
        id=str(number),
        text=text.strip(),
        token_ids=tuple(ids),
        log_probs=(np.nan,) * len(ids),
        first_entropy=np.nan,
        finished=True,
    )


def form_of(text: str, entity: Span, sentence: Span) -> str:
    """The form that an entity of a given answer has, as `surfaces.py` names them."""
    own = text[entity.start : entity.stop]
    if text.lstrip().startswith(("{", "[", "```")) and _values_before(text, entity.start):
        return "json"
    if text[: entity.start].endswith("**"):
        return "bold"
    if own == own.lower() and own != own.upper():
        return "lower-case"
    if trimmed(text, sentence) != entity:
        return "sentence"
    return "full-stop" if text[entity.stop :].startswith(".") else "as-written"


def _values_before(text: str, place: int) -> bool:
    return text[:place].rstrip().endswith(('"', ":", "[", ","))


def _whole(text: str, span: Span, value: bool, question: str) -> Sentence:
    found = None if value else answer_span(text[span.start : span.stop], question=question)
    entity = Span(span.start + found.start, span.start + found.stop) if found else span
    return Sentence(span, (entity,))


def _regions(text: str) -> Iterator[tuple[Span, bool]]:
    """The stretches of a text, and whether each is inside a code fence."""
    start = 0
    for fence in _FENCE.finditer(text):
        yield Span(start, fence.start()), False
        yield Span(*fence.span(1)), True
        start = fence.end()
    yield Span(start, len(text)), False


def _split(text: str, region: Span, fenced: bool) -> Iterator[tuple[Span, bool]]:
    """The sentences of a stretch, or its values where it is JSON; and whether they are values."""
    own = text[region.start : region.stop]
    if own.lstrip()[:1] in ("{", "[") and _is_json(own):
        for part in _JSON_PART.finditer(text, *region):
            span = trimmed(text, Span(*part.span()))
            if part["key"] is None and span.start < span.stop:
                yield span, True
        return
    if fenced:
        return
    for line in _LINE.finditer(text, *region):
        start = line.start() + len(_MARK.match(line[0])[0])  # type: ignore[index]
        while opening := _OPENING.match(text, start, line.end()):
            if opening.end() == start:
                break
            start = opening.end()
        for span in _sentences(text, Span(start, line.end())):
            bare = trimmed(text, span)
            claims = bare.start < bare.stop and not is_abstention(text[span.start : span.stop])
            if claims and not text[span.start : span.stop].rstrip().endswith(("?", ":")):
                yield span, False


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _sentences(text: str, span: Span) -> Iterator[Span]:
    start = span.start
    for end in SENTENCE_END.finditer(text, *span):
        if not ABBREVIATION.search(text, max(start, end.start() - 4), end.start()):
            yield Span(start, end.start() + 1)
            start = end.end()
    yield Span(start, span.stop)


def _entities(text: str, sentence: Span, question: str) -> tuple[Span, ...]:
    """The names and numbers that one of several sentences gives its subject."""
    main = _whole(text, sentence, False, "").entities[0]
    copula = COPULA.search(text, *sentence)
    first = WORD.search(text, *sentence)
    start = copula.end() if copula else first.end() if first else sentence.start
    in_question = {plain_word(word[0]) for word in WORD.finditer(question)} | STOP
    names = [
        trimmed(text, Span(*name.span()))
        for name in _NAME.finditer(text, start, sentence.stop)
        if not all(plain_word(word[0]) in in_question for word in WORD.finditer(name[0]))
    ]
    inside = [name for name in names if main.start <= name.start and name.stop <= main.stop]
    return merged(names if inside else [*names, main])
