"""Words of a text in a form in which two spellings of one thing are equal.

Case, accents, punctuation, hyphens and articles do not count; "&" is "and", "U.S." is
"US", "1,000" is "1000", "twelve" is "12", "14 December 1972" is "December 14, 1972".
A word keeps what it looked like (`raw`), because "IN" and "in" are not the same answer.

SQuAD's normalisation (case, ASCII punctuation, articles) decides 79 of the 133 answered cases in
tests/test_judge.py as they should be by equality, 72 by "contains"; these words decide all 133.
Unidecode writes every script in Latin letters: the provinces 陕西 and 山西 become one word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from anchorscope.answers.normalise_numbers import (
    DIGIT,
    dates_in_order,
    number_words,
    plain_numbers,
)

# Letters that Unicode does not take apart into a base letter and an accent.
LETTERS = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i"}
)
QUOTES = str.maketrans(dict.fromkeys("‘’ʼ`´", "'") | dict.fromkeys("‐‑‒–—−", "-"))
ARTICLES = frozenset({"a", "an", "the"})
INITIALS = re.compile(r"(?<!\w)(?:(?:[A-Za-z]\.)+[A-Za-z](?!\w)\.?|(?:[A-Z]\. )+[A-Z]\.)")
WORD = re.compile(r"(?:(?<!\w)-)?\d+(?:\.\d+)?~\d+|(?:(?<!\w)-)?\d+\.\d+(?!\w)|"
                  r"(?:(?<!\w)-(?=\d))?[^\W_]+(?:'[^\W_]+)*[+#]*|[&%]")  # fmt: skip
SYMBOLS = {"&": "and", "%": "percent"}
PARTS = re.compile(r"[^\w\s'-]")  # a hyphen joins ("comedy-drama"); other punctuation parts
# Datasets repeat their aliases, and a judge asks for those of one question several times.
REMEMBERED = 2**16


class Word(NamedTuple):
    """A normalised word, what was written, and whether punctuation comes before it."""

    text: str
    raw: str
    first: bool  # the first word of its text, where a capital letter means nothing
    gap: bool  # punctuation between it and the word before


def fold(text: str) -> str:
    """The text without case and accents; its length may differ."""
    if text.isascii():  # what follows, without its way through Unicode
        return text.replace("`", "'").lower()
    apart = unicodedata.normalize("NFKD", text.translate(QUOTES))
    bare = "".join(c for c in apart if not unicodedata.combining(c))
    return bare.casefold().translate(LETTERS)


@lru_cache(maxsize=REMEMBERED)
def words(text: str) -> tuple[Word, ...]:
    """The normalised words of a text, without articles."""
    return _without_articles(_counted(_split(_prepared(text))))


def plain(text: str) -> str:
    """The folded text with single spaces for punctuation and no apostrophes: "i dont know"."""
    return " ".join(re.findall(r"[^\W_]+", fold(text).replace("'", "")))


def _prepared(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).translate(QUOTES)
    if "." in text:
        text = INITIALS.sub(lambda m: re.sub(r"[.\s]", "", m[0]) + " ", text)
    return dates_in_order(plain_numbers(text)) if DIGIT.search(text) else text


def _split(text: str) -> list[Word]:
    parts, end = [], 0
    for match in WORD.finditer(text):
        raw = match[0].replace("'", "")
        between = text[end : match.start()]
        gap = between not in ("", " ") and PARTS.search(between) is not None
        parts.append(Word(SYMBOLS.get(raw) or fold(raw), raw, not parts, gap))
        end = match.end()
    return parts


def _counted(split: Sequence[Word]) -> list[Word]:
    """The words with numbers as digits; a number keeps the raw form of its first word."""
    numbers = number_words([(w.text, w.raw) for w in split])
    return [
        split[start] if split[start].text == text else split[start]._replace(text=text)
        for start, text in numbers
    ]


def _without_articles(split: Sequence[Word]) -> tuple[Word, ...]:
    """Without a, an, the; the A of "vitamin A" stays, and so do articles alone."""
    kept = []
    for at, word in enumerate(split):
        last = at + 1 == len(split) or split[at + 1].gap
        letter = word.raw == "A" and last and not word.first
        if letter or word.text not in ARTICLES:
            kept.append(word)
    return tuple(kept or split)
