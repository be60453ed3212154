"""Untrusted text as HTML: escaped, and characters that cannot be seen written as their code."""

from __future__ import annotations

import html
import re
import unicodedata

_SIGNS = {"\n": "⏎", "\t": "⇥"}
# Format and control characters, odd spaces, and letters without a shape, as the page of samples
# shows them too.
_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
_ANY = re.compile(r"[^ -~]")  # what is printable ASCII needs no look


def escape(text: object) -> str:
    """The text as HTML, quotation marks included."""
    return html.escape(str(text), quote=True)


def visible(text: str) -> str:
    """The text as HTML with its hidden characters shown, in an element of its own direction."""
    return f'<bdi dir="auto">{codes(text)}</bdi>'


def codes(text: str) -> str:
    """The text as HTML with its hidden characters shown as U+202E and the like."""
    if not _ANY.search(text):
        return escape(text)
    return "".join(_code(letter) if hidden(letter) else escape(letter) for letter in text)


def hidden(letter: str) -> bool:
    """Whether a reader would not see this character, or would see the others moved by it."""
    if letter == " ":
        return False
    blank = letter in _BLANK or "\ufe00" <= letter <= "\ufe0f"
    return blank or unicodedata.category(letter) in _CATEGORIES


def _code(letter: str) -> str:
    name = _SIGNS.get(letter, f"U+{ord(letter):04X}")
    return f'<span class="code" title="U+{ord(letter):04X}">{name}</span>'
