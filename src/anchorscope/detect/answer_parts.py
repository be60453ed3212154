"""Split an answer into the sentences that claim something, their entities, and their tokens.

Prose, Markdown lists, JSON (bare or in a code fence) and an opening such as "Sure!" are understood.
Code is skipped. No gold answer is used.

A detector learns from short answers that its model wrote. The words around an entity, or another
way to write it, move its state as much as an error does. So a given answer with one entity is read
as that entity alone, directly behind the prompt: "Paris", "Paris.", "**Paris**" and "It is Paris."
are the same answer, and get the same score. Where other words are around the entity, the answer may
say something else of it, and it is read in its place.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from anchorscope.answers.generate import answer_offsets
from anchorscope.answers.judge import FUNCTION, NEGATORS, NO, judge
from anchorscope.answers.normalise import plain
from anchorscope.models import Model
from anchorscope.records import Answer, Span
from anchorscope.spans.answer import COPULA, answer_span, sentences
from anchorscope.spans.characters import STOP, WORD, merged, plain_word, tokens_of, trimmed

_FENCE = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)
_JSON_PART = re.compile(
    r'"(?:[^"\\]|\\.)*"(?P<key>\s*:)?|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\btrue\b|\bfalse\b'
)
_NAME = re.compile(
    r"[^\W\da-z_][\w’'-]*(?:\s+(?:(?:of|the|de|la|von|van)\s+)*[^\W\da-z_][\w’'-]*)*|\d(?:[\d.,]*\d)?"
)

# What denies an entity, and what may be around a single one beside the question's own words.
_DENIALS = NEGATORS | NO | {"but", "doubt", "hardly", "unlikely", "wrong"}
_IDLE = (FUNCTION - _DENIALS) | {
    "absolutely", "answer", "believe", "certainly", "correct", "course", "happy", "help", "here",
    "ok", "okay", "right", "sure", "thing", "think", "yep", "yes",
}  # fmt: skip
_LABEL = re.compile(r'"[^"\n]*"\s*:|```[\w+-]*')  # keys of JSON, languages of code fences


class Sentence(NamedTuple):
    """A sentence, or a value of JSON, with the entities it claims (at least one)."""

    span: Span
    entities: tuple[Span, ...]


def answer_parts(text: str, *, question: str = "", every: bool = True) -> list[Sentence]:
    """The sentences of an answer that claim something, in the order of the text.

    Without `every`, only the first one, with the one entity that a run reads in a short answer.
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
    tokens: tuple[int, ...]  # E_A, counted from the answer's first token; at least one
    sentence: Span


@dataclass(frozen=True, kw_only=True)
class SingleEntity:
    """The only entity of a given answer, in characters of that answer."""

    answer: str
    sentence: Span
    span: Span

    @property
    def spellings(self) -> tuple[str, ...]:
        """The entity as it is written, and with capitals if it has none."""
        text = self.answer[self.span.start : self.span.stop]
        return (text, string.capwords(text)) if text == text.lower() != text.upper() else (text,)


@dataclass(frozen=True, kw_only=True)
class LocatedAnswer:
    """An answer and the entities found in it; none if it names nothing."""

    question: str
    answer: Answer  # as it was read
    entities: tuple[Entity, ...]
    text: str  # which the entities' characters belong to
    as_trained: bool = False  # read in the form that a detector of short answers learnt from


def locate_answer(
    model: Model, question: str, answer: Answer, *, every: bool = False
) -> LocatedAnswer:
    """Find the entity of an answer as a run does, or `every` entity; no gold answer is used."""
    offsets, found = answer_offsets(model, answer), []
    for sentence, spans in answer_parts(answer.text, question=question, every=every):
        for span in spans:
            if tokens := tokens_of([span], offsets):
                found.append(Entity(span=span, tokens=tokens, sentence=sentence))
    return LocatedAnswer(
        question=question,
        answer=answer,
        entities=tuple(found),
        text=answer.text,
    )


def single_entity(text: str, *, question: str, every: bool) -> SingleEntity | None:
    """The entity of a given answer; None if there is none, or with `every` more than one.

    None too where the answer may not claim it: where other words than the question's and function
    words are around it, or one that denies, or where the judge, with the entity as the gold answer,
    does not call the answer right ("-3.5", whose entity is 3.5).
    """
    parts = answer_parts(text, question=question, every=every)
    found = [(sentence, span) for sentence, spans in parts for span in spans]
    if len(found) != 1:
        return None
    sentence, span = found[0]
    around = f"{text[: span.start]} {text[span.stop :]}"
    added = {*plain(_LABEL.sub(" ", around)).split()} - {*plain(question).split()} - _IDLE
    if added or _DENIALS & {*plain(text).split()} - {*plain(question).split()}:
        return None
    if judge(text, [text[span.start : span.stop]], question=question) != "right":
        return None
    return SingleEntity(answer=text, sentence=sentence, span=span)


def locate_single(
    entity: SingleEntity, model: Model, question: str, answer: Answer
) -> LocatedAnswer:
    """A given answer whose only entity was read alone, as `answer`."""
    tokens = tokens_of([Span(0, len(answer.text))], answer_offsets(model, answer))
    found = Entity(span=entity.span, tokens=tokens, sentence=entity.sentence)
    return LocatedAnswer(
        question=question,
        answer=answer,
        entities=(found,) if tokens else (),  # a tokenizer may drop all of its characters
        text=entity.answer,
        as_trained=True,
    )


def _whole(text: str, span: Span, value: bool, question: str) -> Sentence:
    found = None if value else answer_span(text[span.start : span.stop], question=question)
    entity = Span(span.start + found.start, span.start + found.stop) if found else span
    return Sentence(span, (entity,))


def _regions(text: str) -> Iterator[tuple[Span, bool]]:
    """Split a text at code fences; each span with whether it is inside one."""
    start = 0
    for fence in _FENCE.finditer(text):
        yield Span(start, fence.start()), False
        yield Span(*fence.span(1)), True
        start = fence.end()
    yield Span(start, len(text)), False


def _split(text: str, region: Span, fenced: bool) -> Iterator[tuple[Span, bool]]:
    """The sentences of a region, or its values if it is JSON, each with whether it is a value."""
    own = text[region.start : region.stop]
    if own.lstrip()[:1] in ("{", "[") and _is_json(own):
        for part in _JSON_PART.finditer(text, *region):
            span = trimmed(text, Span(*part.span()))
            if part["key"] is None and span.start < span.stop:
                yield span, True
        return
    if fenced:
        return
    yield from ((span, False) for span, claims in sentences(text, region) if claims)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _entities(text: str, sentence: Span, question: str) -> tuple[Span, ...]:
    """The names and numbers that a sentence claims, without those of the question."""
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
