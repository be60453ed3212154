"""Merge, trim and find character spans, and map them to tokens."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from anchorscope.records import Span

WORD = re.compile(r"[^\W_]+(?:[’'.\-–][^\W_]+)*")


def word_set(text: str) -> frozenset[str]:
    """Split a text into a set of words."""
    return frozenset(text.split())


# The closed classes of English: articles, pronouns, question words, auxiliaries, prepositions,
# conjunctions, quantifiers. They carry neither subject nor property. A word that is not here, of
# whatever language, counts as content.
FUNCTION_WORDS = word_set(
    "a about above across after again against all along also although am among an and any are "
    "aren't around as at be because been before behind being below beneath beside besides between "
    "beyond both but by can can't could couldn't despite did didn't do does doesn't doing don't "
    "done down during each either ever every except few for from had hadn't has hasn't have "
    "haven't having he her here hers herself him himself his how i if in inside into is isn't it "
    "its itself just like many may me might mine more most much must my near neither never no none "
    "nor not now of off on once one only onto or other others our out outside over own past per "
    "shall she should shouldn't since so some such than that the their theirs them themselves then "
    "there these they this those though through throughout to too toward towards under until up "
    "upon us very via was wasn't we were weren't what when where whereas whether which while who "
    "whom whose why will with within without won't would wouldn't yet you your yours"
)

# Words that name nothing: function words, and verbs and nouns common in questions. scikit-learn's
# list holds "bill", "fire" and "system", which name something, and lacks "born", "located", "won".
STOP = FUNCTION_WORDS | word_set(
    "became get gets give given go goes going got last long mean means name named same take takes "
    "use used come comes came called known took place happen happened located found play plays "
    "played playing won win wins start starts started end ends ended begin begins began live lives "
    "lived die dies died born made make makes leave leaves left become becomes first"
)


def plain_word(word: str) -> str:
    """Lower a word and drop its possessive ending."""
    return re.sub(r"['’]s$", "", word.lower()).replace("’", "'")


def content_words(text: str) -> list[Span]:
    """Find the words that are not function words, without possessive endings."""
    found = []
    for word in WORD.finditer(text):
        bare = plain_word(word[0])
        if bare not in FUNCTION_WORDS:
            found.append(Span(word.start(), word.start() + len(bare)))
    return found


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sort spans and merge those that overlap or touch."""
    result: list[Span] = []
    for span in sorted(span for span in spans if span[0] < span[1]):
        if result and span.start <= result[-1].stop:
            result[-1] = Span(result[-1].start, max(result[-1].stop, span.stop))
        else:
            result.append(span)
    return tuple(result)


def longest(spans: Iterable[Span]) -> Span:
    """The span with the most characters; the first of equals."""
    return max(spans, key=lambda span: (span.stop - span.start, -span.start))


def trimmed(text: str, span: Span) -> Span:
    """Trim white space and punctuation from a span's ends."""
    start, stop = span
    while start < stop and _idle(text[start]):
        start += 1
    while stop > start and _idle(text[stop - 1]):
        stop -= 1
    return Span(start, stop)


def occurrences(text: str, piece: str, *, any_case: bool = False) -> tuple[Span, ...]:
    """Find every occurrence of the piece that begins and ends on word borders."""
    if not piece.strip():
        return ()
    # A regex, not casefold(): folding can change lengths, and so every position after.
    flags = re.IGNORECASE if any_case else re.NOFLAG
    found = (Span(*match.span()) for match in re.finditer(re.escape(piece), text, flags))
    return tuple(s for s in found if _border(text, s.start) and _border(text, s.stop))


def overlap(a: Iterable[Span], b: Iterable[Span]) -> float:
    """The Jaccard index of the characters that two sets of spans cover."""
    left, right = merged(a), merged(b)
    shared = sum(max(0, min(p, q) - max(m, n)) for m, p in left for n, q in right)
    either = sum(stop - start for start, stop in (*left, *right)) - shared
    return shared / either


def _border(text: str, at: int) -> bool:
    """Whether a word may end at this position; scripts without spaces have no borders."""
    if at in (0, len(text)):
        return True
    pair = text[at - 1 : at + 1]
    letters = all(c.isalnum() or unicodedata.combining(c) for c in pair)
    return not letters or any(unicodedata.category(c) == "Lo" for c in pair)


def _idle(char: str) -> bool:
    return char.isspace() or char == "`" or unicodedata.category(char).startswith("P")


def tokens_of(
    spans: Sequence[Span], offsets: Sequence[tuple[int, int]], *, start: int = 0
) -> tuple[int, ...]:
    """Find the tokens that share a character with a span.

    `offsets` are the tokenizer's half-open character ranges; the text of the spans begins at
    character `start` of the tokenised text.
    A leading space in a token does no harm: " Paris" overlaps "Paris" whether its range
    counts the space or not, and a token that is only the space beside a span does not. A
    character split over several byte tokens gives all of them, as they share its range.
    Special tokens have an empty range and are not taken. A lone space whose range the
    tokenizer trimmed to nothing is taken strictly inside a span: it leaves no hole there.
    """
    shifted = [(start + a, start + b) for a, b in spans if a < b]
    taken = {
        at
        for low, high in shifted
        for at, (first, stop) in enumerate(offsets)
        if low < stop and first < high
    }
    return tuple(sorted(taken))
