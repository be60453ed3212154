"""The kind of an answer by its form: yes/no, date, number, name, other."""

from __future__ import annotations

import re
from typing import Literal, get_args

from anchorscope.records import Sample

Kind = Literal["yes/no", "date", "number", "name", "other", "none"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_MONTHS = (
    "january|february|march|april|may|june|july|august|september|october|november|december|"
    "jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec"
)
_COUNTS = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|"
    "sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|"
    "hundred|thousand|million|billion"
)
_YES_NO = re.compile(r"(yes|no)\b", re.IGNORECASE)
_DATE = re.compile(
    rf"(\d{{1,2}}(st|nd|rd|th)?\s+)?({_MONTHS})\.?(\s+\d|,|$)|(in\s+)?(1\d|20)\d\ds?\W*$|"
    r"\d{1,4}[-/]\d{1,2}[-/]\d{1,4}\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(rf"[-+−$€£]?\d|({_COUNTS})\b", re.IGNORECASE)
_FORMS: dict[Kind, re.Pattern[str]] = {"yes/no": _YES_NO, "date": _DATE, "number": _NUMBER}


def kind_of_answer(text: str) -> Kind:
    """The kind of the text that carries the answer, from its form alone.

    A name begins with a capital letter in most of its words; a year alone is a date.
    """
    words = text.strip().strip("\"'“”‘’.()[] ")
    if not words:
        return "none"
    for name, form in _FORMS.items():
        if form.match(words):
            return name
    letters = [word[0] for word in words.split() if word[0].isalpha()]
    capitals = sum(letter == letter.upper() for letter in letters)
    return "name" if letters and 2 * capitals >= len(letters) else "other"


def kind_of(sample: Sample) -> str:
    """The kind of a sample's answer: its own, else by its exact answer where that was found."""
    if sample.kind:
        return sample.kind
    span, text = sample.answer_span, sample.answer.text
    return kind_of_answer(text[span.start : span.stop] if span else text)
