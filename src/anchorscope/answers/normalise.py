"""Normalise words so that different spellings of one thing are equal.

Case, accents, punctuation, hyphens and articles do not count; "&" is "and", "U.S." is
"US", "1,000" is "1000", "twelve" is "12", "14 December 1972" is "December 14, 1972".
A word keeps what it looked like (`raw`), because "IN" and "in" are not the same answer.
Numbers and dates have one form each: digits, and "year month day".
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

# --- Words ---


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
# Datasets repeat their aliases, and a judge needs those of one question several times.
REMEMBERED = 2**16


class Word(NamedTuple):
    """A normalised word, what was written, and whether punctuation comes before it."""

    text: str
    raw: str
    first: bool  # the first word of its text, where a capital letter means nothing
    gap: bool  # punctuation between it and the word before


def fold(text: str) -> str:
    """Remove case and accents; the length may change."""
    if text.isascii():  # the same result, faster
        return text.replace("`", "'").lower()
    apart = unicodedata.normalize("NFKD", text.translate(QUOTES))
    bare = "".join(c for c in apart if not unicodedata.combining(c))
    return bare.casefold().translate(LETTERS)


@lru_cache(maxsize=REMEMBERED)
def words(text: str) -> tuple[Word, ...]:
    """Split a text into normalised words, without articles."""
    text = unicodedata.normalize("NFKC", text).translate(QUOTES)
    if "." in text:
        text = INITIALS.sub(lambda m: re.sub(r"[.\s]", "", m[0]) + " ", text)
    if DIGIT.search(text):
        text = plain_numbers(text)
        for pattern in DATES:  # every date as "year Month dayN", so that "14" is not found in one
            text = pattern.sub(_date, text)
    return _without_articles(_counted(_split(text)))


def plain(text: str) -> str:
    """Remove case, accents, punctuation and apostrophes: "i dont know"."""
    return " ".join(re.findall(r"[^\W_]+", fold(text).replace("'", "")))


def _split(text: str) -> list[Word]:
    parts, end = [], 0
    for match in WORD.finditer(text):
        raw = match[0].replace("'", "")
        between = text[end : match.start()]
        gap = between not in ("", " ") and PARTS.search(between) is not None
        parts.append(Word(SYMBOLS.get(raw) or fold(raw), raw, not parts, gap))
        end = match.end()
    return parts


def _without_articles(split: Sequence[Word]) -> tuple[Word, ...]:
    """Drop articles, but keep the A of "vitamin A" and articles alone."""
    kept = []
    for at, word in enumerate(split):
        last = at + 1 == len(split) or split[at + 1].gap
        letter = word.raw == "A" and last and not word.first
        if letter or word.text not in ARTICLES:
            kept.append(word)
    return tuple(kept or split)


# --- Numbers and dates ---


def _numbered(text: str, values: Iterable[int]) -> dict[str, int]:
    return dict(zip(text.split(), values, strict=True))


UNITS = _numbered(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen",
    range(20),
)
TENS = _numbered("twenty thirty forty fifty sixty seventy eighty ninety", range(20, 100, 10))
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
ORDINALS = _numbered(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth "
    "thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth "
    "thirtieth fortieth fiftieth sixtieth seventieth eightieth ninetieth",
    (*range(1, 20), *range(20, 100, 10)),
)
# Single letters are left out: "Malcolm X", "V for Vendetta", "I".
ROMAN = _numbered(
    "II III IV VI VII VIII IX XI XII XIII XIV XV XVI",
    (2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16),
)
# A text without one of these, a Roman number or a digit holds no number.
COUNTING = frozenset({*UNITS, *TENS, *SCALES, *ORDINALS, "bce", "ce"})
DIGIT = re.compile(r"\d")
LARGEST = 10**15  # number words beyond it are not converted
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
MONTH = r"(?P<month>" + "|".join(f"{m[:3]}(?:{m[3:]})?" for m in MONTHS) + r"|Sept)\b\.?"
DAY = r"(?P<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
YEAR = r"(?P<year>\d{3,4})(?![\w~])"
DATES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b{DAY}\s+(?:of\s+)?{MONTH}(?:,?\s+(?:of\s+)?{YEAR})?",
        rf"\b{MONTH}\s+(?:the\s+)?{DAY}(?![\w~])(?:,?\s+(?:of\s+)?{YEAR})?",
        rf"\b{MONTH},?\s+(?:of\s+)?{YEAR}",
    )
]


def plain_numbers(text: str) -> str:
    """Rewrite "1,000" as "1000", "7pm" as "7 pm", and number ranges as "1939~1945"."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"(?<=\d)(?=[ap]m\b)", " ", text, flags=re.IGNORECASE)
    text = re.sub(r"\b(\d{4})-(\d\d)-(\d\d)\b", _iso, text)
    text = re.sub(r"\b(?:minus|negative)\s+(?=\d)", "-", text, flags=re.IGNORECASE)
    return re.sub(r"(?<![\w.-])(\d+)(?:\s*-\s*|\s+to\s+)(\d+)(?![\w-])", _range, text)


def _counted(split: Sequence[Word]) -> Sequence[Word]:
    """Write numbers as digits; a number keeps the raw form of its first word."""
    texts = [word.text for word in split]
    if not any(w.text in COUNTING or w.raw in ROMAN or DIGIT.search(w.text) for w in split):
        return split
    counted, at = [], 0
    while at < len(split):
        value, stop = _cardinal(texts, at)
        unit = ORDINALS.get(texts[stop], 0) if stop < len(texts) else 0
        if value is None:
            text, stop = _single(split, at), at + 1
        elif value in TENS.values() and 1 <= unit <= 9:  # "twenty-first"
            text, stop = _nth(int(value) + unit), stop + 1
        else:
            whole = abs(value - round(value)) < 1e-9
            text = str(round(value) if whole else round(value, 6))
        counted.append(split[at]._replace(text=text))
        at = stop
    return counted


def _single(split: Sequence[Word], at: int) -> str:
    """The text of a word that begins no number."""
    text, raw = split[at].text, split[at].raw
    if raw in ROMAN and at > 0:
        return str(ROMAN[raw])
    if text in ORDINALS:
        return _nth(ORDINALS[text])
    if text in ("bce", "ce"):
        return {"bce": "bc", "ce": "ad"}[text]
    before = split[at - 1].text if at else ""
    after_number = before in (UNITS | TENS | SCALES) or re.fullmatch(r"-?[\d.]+", before)
    # "30-minute" and "30 minutes" are one length.
    return text[:-1] if after_number and len(text) > 3 and text.endswith("s") else text


def _cardinal(texts: Sequence[str], at: int) -> tuple[float | None, int]:
    """Parse the number that starts at a word; None if none starts there."""
    part, stop = _below_hundred(texts, at)
    if part is None:
        return None, at
    whole: float = 0  # "two thousand" of "two thousand three hundred"
    last = math.inf  # the scale it was counted in
    while stop < len(texts) and (scale := SCALES.get(texts[stop])):
        if abs(whole + part) >= LARGEST:  # "hundred" ten thousand times is no number
            break
        if scale == 100:
            part *= scale
        else:
            whole = whole + part * scale if scale < last else (whole + part) * scale
            part, last = 0, scale
        more, stop = _more(texts, stop + 1, hundreds=not part)
        part += more
    return whole + part, stop


def _more(texts: Sequence[str], at: int, *, hundreds: bool) -> tuple[float, int]:
    """Parse the number that follows a scale word, as 5 in "two hundred and five".

    "two hundred and five" is one number, "two hundred and 1990" and "two hundred three hundred"
    are two.
    """
    start = at + (at < len(texts) and texts[at] == "and")
    value, stop = _below_hundred(texts, start)
    if value is None or texts[start] not in (UNITS | TENS):
        return 0, at
    again = stop < len(texts) and texts[stop] == "hundred"
    return (0, at) if again and not hundreds else (value, stop)


def _below_hundred(texts: Sequence[str], at: int) -> tuple[float | None, int]:
    text = texts[at] if at < len(texts) else ""
    following = texts[at + 1] if at + 1 < len(texts) else ""
    if re.fullmatch(r"-?\d{1,15}(\.\d{1,15})?", text):  # a longer row of digits stays a word
        return float(text) if "." in text else int(text), at + 1
    if text in TENS:
        unit = UNITS.get(following, 0)
        return (TENS[text] + unit, at + 2) if 1 <= unit <= 9 else (TENS[text], at + 1)
    # "one of the rivers" and "no one" count nothing.
    idle = text == "one" and (following == "of" or (at > 0 and texts[at - 1] == "no"))
    return (None, at) if idle or text not in UNITS else (UNITS[text], at + 1)


def _nth(value: int) -> str:
    suffix = "th" if 10 <= value % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{value}{suffix}"


def _iso(match: re.Match[str]) -> str:
    month = int(match[2])
    return f"{MONTHS[month - 1]} {int(match[3])}, {match[1]}" if 1 <= month <= 12 else match[0]


def _range(match: re.Match[str]) -> str:
    start, stop = match[1], match[2]
    if len(start) == 4 and len(stop) < 4:  # 1939-45
        stop = start[: 4 - len(stop)] + stop
    return f"{start}~{stop}"


def _date(match: re.Match[str]) -> str:
    parts = match.groupdict()
    month = next(m for m in MONTHS if m[:3].lower() == parts["month"][:3].lower())
    day = f"day{int(parts['day'])}" if parts.get("day") else ""
    return " ".join(filter(None, (parts.get("year"), month, day)))
