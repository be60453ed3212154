"""Format numbers and untrusted text for pages."""

from __future__ import annotations

import html
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

_SIGNS = {"\n": "⏎", "\t": "⇥"}
# Format and control characters, odd spaces, and letters without a shape; web/text.js has the same.
_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
_UNUSUAL = re.compile(r"[^ -~]")  # all but printable ASCII


def number(value: float, digits: int = 1) -> str:
    """Format a number with a true minus sign; 'not measured' if it is not finite."""
    if not math.isfinite(value):
        return "not measured"
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−")


def two_digits(value: float) -> str:
    """Format a number with two decimals."""
    return number(value, 2)


def percent(share: float) -> str:
    """Format a share of 1 as a whole percentage, with one decimal close to 0 or 100 %."""
    if not math.isfinite(share):
        return "not measured"
    digits = 1 if 0 < abs(share) < 0.01 or 0.99 < abs(share) < 1 else 0
    return f"{number(100 * share, digits)} %"


def short(value: float) -> str:
    """Format a number with about three digits, such as `−17.4`; empty if it is not finite."""
    if not math.isfinite(value):
        return ""
    return number(value, 1 if abs(value) >= 9.995 else 2)


def span(low: float, high: float, show: Callable[[float], str] = number) -> str:
    """Format an interval as 'low to high', or 'no interval' where an end is unknown."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "no interval"
    return f"{show(low)} to {show(high)}"


def with_span(row: Mapping[str, Any], name: str, show: Callable[[float], str]) -> str:
    """Format columns `name`, `name_low` and `name_high` of a row as 'value (low to high)'."""
    value, low, high = (float(row[f"{name}{end}"]) for end in ("", "_low", "_high"))
    if not math.isfinite(value):
        return "not measured"
    return f"{show(value)} ({span(low, high, show)})" if math.isfinite(low) else show(value)


def visible(text: str) -> str:
    """Escape a text as HTML with hidden characters shown, in a `bdi` element."""
    return f'<bdi dir="auto">{codes(text)}</bdi>'


def codes(text: str) -> str:
    """Escape a text as HTML with hidden characters shown as codes such as U+202E."""
    if not _UNUSUAL.search(text):
        return html.escape(text)
    return "".join(_code(letter) if _hidden(letter) else html.escape(letter) for letter in text)


def _hidden(letter: str) -> bool:
    """Whether a character is invisible or changes the direction of text."""
    if letter == " ":
        return False
    blank = letter in _BLANK or "\ufe00" <= letter <= "\ufe0f"
    return blank or unicodedata.category(letter) in _CATEGORIES


def _code(letter: str) -> str:
    name = _SIGNS.get(letter, f"U+{ord(letter):04X}")
    return f'<span class="code" title="U+{ord(letter):04X}">{name}</span>'
