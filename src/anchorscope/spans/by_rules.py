"""Exact question tokens by rules: names and quotations, else the content words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from anchorscope.records import Span
from anchorscope.spans.characters import STOP, WORD, merged, trimmed, word_set

# Bounded: a text of nothing but opening marks would be read to its end from each of them.
QUOTED = re.compile(
    r'"([^"]{1,300})"|“([^”]{1,300})”|«([^»]{1,300})»|'
    r"(?<!\w)['‘]([^'‘’]{1,300}(?:['’]\w[^'‘’]{0,300}){0,8})['’](?!\w)"
)
# Small words that may come between two capitalised words of one name.
CONNECTORS = word_set(
    "of the de la le du da do dos das di del della von van der den zu bin ibn al el y"
)
# Capitalised because they open the sentence, not because they name something.
OPENERS = STOP | word_set(
    "find tell list according along near among within although despite besides like upon"
)
ABBREVIATION = re.compile(r"(?:[A-Z]|St|Dr|Mr|Mrs|Ms|Mt|Ft|Jr|Sr|No|vs)")

LOOK_BACK = 64  # characters


def rules_spans(text: str) -> tuple[Span, ...]:
    """Names, quotations and numbers; where there is no name, the runs of content words.

    A number alone does not stop the second way: of "season 6 downton abbey" the number
    is the least part.
    """
    names = [*_quoted(text), *_names(text)]
    spans = merged([*names, *_numbers(text)] if names else _content(text))
    # "1980 Winter Olympics": number and name side by side are one span.
    gaps = (Span(a.stop, b.start) for a, b in pairwise(spans) if text[a.stop : b.start].isspace())
    return merged([*spans, *gaps])


def _quoted(text: str) -> Iterator[Span]:
    for match in QUOTED.finditer(text):
        group = next(i for i in range(1, 5) if match[i] is not None)
        span = trimmed(text, Span(*match.span(group)))
        if span.start < span.stop:
            yield span


def _numbers(text: str) -> Iterator[Span]:
    for match in re.finditer(r"\d+(?:[.,]\d+)*(?:[^\W\d_]+)?", text):
        yield Span(*match.span())


def _names(text: str) -> Iterator[Span]:
    """Runs of capitalised words, with connectors and numbers inside them."""
    run: list[re.Match[str]] = []
    held: list[re.Match[str]] = []  # connectors that wait for the next capital
    for word in WORD.finditer(text):
        last = (held or run)[-1] if run else None
        if last and not _joined(text[last.end() : word.start()], last[0]):
            yield from _closed(run)
            run, held = [], []
        if _capital(text, word) or (run and not held and word[0][0].isdigit()):
            run, held = [*run, *held, word], []
        elif run and word[0] in CONNECTORS:
            held.append(word)
        else:
            yield from _closed(run)
            run, held = [], []
    yield from _closed(run)


def _closed(run: list[re.Match[str]]) -> Iterator[Span]:
    """The span of a finished run, without the possessive at its end."""
    if run:
        stop = run[-1].end() - (2 if re.search(r"['’]s$", run[-1][0]) else 0)
        yield Span(run[0].start(), stop)


def _joined(between: str, word: str) -> bool:
    if between == " " or re.fullmatch(r"\s+|\s*[&/]\s*", between):
        return True
    return bool(re.fullmatch(r"\.\s+", between) and ABBREVIATION.fullmatch(word))


def _capital(text: str, word: re.Match[str]) -> bool:
    """Whether the word is written as a name, and not only because it opens a sentence."""
    if word[0].islower() or not any(c.isupper() for c in word[0]):
        return False
    if word[0] == "I":  # a name only beside another capital: "I Wish You Would", "Corey I. Sanders"
        return _next_upper(text, word)
    # As far back as a sentence's end can lie: the whole text again for each word takes minutes.
    before = text[max(0, word.start() - LOOK_BACK) : word.start()].rstrip(" \"'“‘(")
    opens = not before or (before[-1] in ".?!:" and not re.search(r"\b[A-Z]\.$", before))
    return not (opens and word[0].lower() in OPENERS)


def _next_upper(text: str, word: re.Match[str]) -> bool:
    following = WORD.search(text, word.end())
    return following is not None and following[0][0].isupper()


def _content(text: str) -> Iterator[Span]:
    """Runs of words that are no stop words; a stop word or punctuation ends a run."""
    start = stop = None
    for word in WORD.finditer(text):
        idle = re.sub(r"['’]s$", "", word[0].lower()) in STOP
        if start is not None and stop is not None and (idle or text[stop : word.start()].strip()):
            yield Span(start, stop)
            start = stop = None
        if not idle:
            start, stop = (word.start() if start is None else start), word.end()
    if start is not None and stop is not None:
        yield Span(start, stop)
