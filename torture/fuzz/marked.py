"""The finders of exact tokens: spans inside their text, and tokens as a plain loop finds them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

from hypothesis import strategies as st

from anchorscope.datasets.text import normalised, one_line, words
from anchorscope.records import Question, Span
from anchorscope.spans.answer import answer_span
from anchorscope.spans.characters import merged, tokens_of
from anchorscope.spans.question import entity_of, find_spans, read_reply
from torture.fuzz.target import Target
from torture.fuzz.texts import long_text, part, seeded, text

FINDERS = ("auto", "given", "rules", "all")


def check_question(given: tuple[str, list[str], str]) -> None:
    """Sorted spans inside the question; of the subject, or of the property, no two touch."""
    asked, subjects, reply = one_line(given[0]), given[1], given[2]
    inside = tuple(s for s in subjects if s and s in asked)
    question = Question(id="q", dataset="d", text=asked, answers=("a",), subjects=inside)
    for finder in FINDERS:
        (found,) = find_spans([question], finder=finder)
        for spans in (found.subject_spans, found.property_spans):
            _check_spans(spans, asked)
        assert found.spans == tuple(sorted((*found.subject_spans, *found.property_spans)))
        assert all(a.stop <= b.start for a, b in pairwise(found.spans)), found  # they may touch
        assert isinstance(entity_of(question, found), str)
    _check_spans(read_reply(asked, reply), asked)
    words(asked), normalised(asked)


def check_answer(given: tuple[str, str]) -> None:
    """A span inside the answer that is not empty, or none where there is no word."""
    answer, question = given
    span = answer_span(answer, question=question)
    if span is not None:
        assert 0 <= span.start < span.stop <= len(answer)


def _check_spans(spans: Sequence[Span], text: str) -> None:
    assert list(spans) == sorted(spans)
    at = -1
    for span in spans:
        assert at < span.start < span.stop <= len(text), (spans, len(text))
        at = span.stop


def check_tokens(given: tuple[list[tuple[int, int]], list[int], int]) -> None:
    """`tokens_of` against a loop over characters."""
    pairs, cuts, start = given
    spans = merged([Span(a, a + n) for a, n in pairs])
    edges = sorted({0, *cuts})
    offsets = list(pairwise(edges))
    marked = {start + at for a, b in spans for at in range(a, b)}
    plain = tuple(n for n, (a, b) in enumerate(offsets) if marked & set(range(a, b)))
    assert tokens_of(spans, offsets, start=start) == plain


def check_long(given: Any) -> None:
    long, other = given
    check_question((long, [other], other))
    check_answer((long, other))
    check_answer((other, long))


def _asked(r: Random) -> tuple[str, list[str], str]:
    asked = text(r)
    cut = r.randint(0, len(asked))
    return asked, [part(r), asked[cut : cut + r.randint(1, 9)]], text(r) + ";" + asked[cut:]


small = st.integers(0, 60)
TARGETS = (
    Target(name="spans of questions", inputs=seeded(_asked), check=check_question, share=14),
    Target(
        name="spans of answers",
        inputs=seeded(lambda r: (text(r), text(r))),
        check=check_answer,
        share=12,
    ),
    Target(
        name="tokens of spans",
        check=check_tokens,
        share=8,
        inputs=st.tuples(st.lists(st.tuples(small, small), max_size=4), st.lists(small), small),
    ),
    Target(
        name="spans, long",
        inputs=seeded(lambda r: (long_text(r), part(r))),
        check=check_long,
        share=0.3,
    ),
)
