"""From characters to tokens."""

from __future__ import annotations

from collections.abc import Sequence

from anchorscope.records import Span


def tokens_of(spans: Sequence[Span], offsets: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The indices of the tokens that share a character with a span.

    `offsets` are the tokenizer's half-open character ranges, in the same text as the spans.
    A leading space in a token does no harm: " Paris" overlaps "Paris" whether its range
    counts the space or not, and a token that is only the space beside a span does not. A
    character split over several byte tokens gives all of them, as they share its range.
    Special tokens have an empty range and are not taken. A lone space whose range the
    tokenizer trimmed to nothing is taken strictly inside a span: it leaves no hole there.
    """
    return tuple(
        index
        for index, (start, stop) in enumerate(offsets)
        if any(max(start, a) < min(stop, b) if start < stop else a < start < b for a, b in spans)
    )
