"""The property that a question asks for: the noun or verb phrase behind its question word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from anchorscope.records import Span
from anchorscope.spans.characters import FUNCTION_WORDS, WORD, content_words, plain_word, word_set

# What is asked for, or who, when and where it is: the former name the property more often.
_NAMING = word_set("what which whose how")
_ASKING = _NAMING | word_set("who whom when where why")
# A noun in place of the one behind it: "the name of the ship", "what kind of bird".
_LIGHT = word_set("name names named called kind kinds type types sort sorts term word")
_LONGEST = 2000  # characters of a text in which a property is looked for


def property_spans(text: str, subject: Sequence[Span]) -> tuple[Span, ...]:
    """The words that name the asked-about property, without those that the subject's spans hold.

    "What country is Osaka in?" asks for "country", "Who wrote Emma?" for "wrote", "When did the
    Berlin Wall fall?" for "fall". It is the first run of content words behind the question word
    that is more than the subject; where nothing follows ("was born when?"), the last one before it;
    without a question word ("Are both painters?") the first of all. In a choice ("Which city is
    further north, Oslo or Rome?") the noun behind "which" says what the two are, and the next run
    ("further north") what is asked about them.
    """
    if len(text) > _LONGEST:  # no question: the search grows with the square of the words
        return ()
    word, at = _asking_word(text)
    clause = _clause(text, at)
    runs = [run for run in _runs(text) if clause.start <= run[0].start < clause.stop]
    runs = [run for run in runs if any(_names(text, word, subject) for word in run)]
    after = [run for run in runs if run[0].start >= at]
    if len(after) > 1 and word in ("what", "which") and _is_choice(text, subject):
        after = after[1:] if text[at : after[0][0].start].isspace() else after
    run = after[0] if after else runs[-1] if runs else []
    # In "does the river Po end" the words in front of the name say what it is, those behind it what
    # is asked; in "wrote Emma" there are none behind it.
    last = max((n for n, word in enumerate(run) if _overlaps(word, subject)), default=-1)
    words = run[last + 1 :] or [word for word in run if not _overlaps(word, subject)]
    return tuple(_joined(text, words))


def _asking_word(text: str) -> tuple[str, int]:
    """The question word and where it ends; ("", 0) where there is none.

    Of several the one that opens the question, else the last that names what is asked for: in "the
    arena where they played seats how many people?" the first is none.
    """
    words = [(plain_word(word[0]), word.end()) for word in WORD.finditer(text)]
    asking = [(word, end) for word, end in words if word in _ASKING]
    opening = [pair for pair in words[:2] if pair in asking and words[0][0] in FUNCTION_WORDS]
    naming = [pair for pair in asking if pair[0] in _NAMING]
    chosen = opening[:1] or naming[-1:] or asking[-1:]
    return chosen[0] if chosen else ("", 0)


def _clause(text: str, at: int) -> Span:
    """The part around a position that no mark parts: "Where is Oslo? Please tell me." has two."""
    marks = [match.start() for match in re.finditer(r"[?!:;]", text)]
    start = max((mark for mark in marks if mark < at), default=0)
    return Span(start, min((mark for mark in marks if mark >= at), default=len(text)))


def _is_choice(text: str, subject: Sequence[Span]) -> bool:
    """Whether two spans of the subject are joined by "or"."""
    between = (text[a.stop : b.start] for a, b in pairwise(subject))
    return any(re.fullmatch(r",?\s+or\s+(?:the\s+|an?\s+)?", gap) for gap in between)


def _runs(text: str) -> list[list[Span]]:
    """The content words of the text; a function word or punctuation between two parts them."""
    runs: list[list[Span]] = []
    for word in content_words(text):
        between = text[runs[-1][-1].stop : word.start] if runs else ""
        if runs and re.fullmatch(r"(?:['’]s)?\s+", between):
            runs[-1].append(word)
        else:
            runs.append([word])
    return runs


def _names(text: str, word: Span, subject: Sequence[Span]) -> bool:
    return not _overlaps(word, subject) and text[word.start : word.stop].lower() not in _LIGHT


def _overlaps(word: Span, spans: Iterable[Span]) -> bool:
    return any(word.start < span.stop and span.start < word.stop for span in spans)


def _joined(text: str, words: Sequence[Span]) -> list[Span]:
    """Words with nothing but white space between them as one span."""
    spans: list[Span] = []
    for word in words:
        if spans and text[spans[-1].stop : word.start].isspace():
            spans[-1] = Span(spans[-1].start, word.stop)
        else:
            spans.append(word)
    return spans
