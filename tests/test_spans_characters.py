"""Spans of characters: tokens, overlap, occurrences and guarded tokens, against loops by hand."""

from __future__ import annotations

import random

from anchorscope.models.prompts import PromptPart, TokenisedPrompt, _writes_guarded_token
from anchorscope.records import Span
from anchorscope.spans.characters import merged, occurrences, overlap, tokens_of


def _some_spans(draw: random.Random, most: int) -> list[Span]:
    ends = [sorted(draw.choices(range(40), k=2)) for _ in range(draw.randint(0, most))]
    return [Span(start, stop) for start, stop in ends]


def test_tokens_are_those_that_share_a_character_with_a_span() -> None:
    draw = random.Random(0)
    for _ in range(3000):
        spans, offsets = _some_spans(draw, 3), _some_spans(draw, 9)
        marked = [set(range(7 + a, 7 + b)) for a, b in spans]
        by_hand = tuple(
            at
            for at, (first, stop) in enumerate(offsets)
            if any(
                of & set(range(first, stop)) if first < stop else of and min(of) < first <= max(of)
                for of in marked
            )
        )
        assert tokens_of(spans, offsets, start=7) == by_hand


def test_the_overlap_is_that_of_the_characters() -> None:
    draw = random.Random(1)
    for _ in range(3000):
        a, b = ([Span(3, 5), *_some_spans(draw, 4)] for _ in range(2))
        left, right = ({at for span in of for at in range(*span)} for of in (a, b))
        assert overlap(a, b) == len(left & right) / len(left | right)
        assert {at for span in merged(a) for at in range(*span)} == left


def test_occurrences_as_written_are_those_of_a_pattern() -> None:
    """A text of few letters: occurrences that overlap are counted as a pattern counts them."""
    draw = random.Random(2)
    for _ in range(3000):
        text = "".join(draw.choices("aab -", k=12))
        piece = "".join(draw.choices("ab-", k=draw.randint(1, 3)))
        assert occurrences(text, piece) == occurrences(text, piece.upper(), any_case=True)


def test_a_guarded_token_counts_where_it_touches_what_is_not_ours() -> None:
    draw = random.Random(3)
    for _ in range(3000):
        sizes = [draw.randint(0, 4) for _ in range(6)]
        pieces = [PromptPart("x" * size, draw.random() < 0.5) for size in sizes]
        spans = _some_spans(draw, 4)
        ids = tuple(draw.randint(0, 1) for _ in spans)
        owners = [piece.ours for piece in pieces for _ in piece.text]
        by_hand = any(
            not all(owners[start:stop])
            for id, (start, stop) in zip(ids, spans, strict=True)
            if id == 1
        )
        coded = TokenisedPrompt(ids, tuple((span.start, span.stop) for span in spans))
        assert _writes_guarded_token(pieces, coded, {1: "<s>"}) == by_hand
