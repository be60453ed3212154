"""Hostile texts and values, and the test that tries them: a value or a UserError, nothing else.

`TORTURE=100` tries a hundred times as many inputs, and other ones each time.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchorscope.errors import UserError

SECONDS = 20.0  # of the processor, for one input; more is a hang
_TIMES = int(os.environ.get("TORTURE", "1"))

SPECIAL = (
    "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<bos>",
    "<s>", "</s>", "[INST]", "<end>", "<think>", "</think>", "[SEP]",
)  # fmt: skip
MARKUP = (
    "<script>alert(1)</script>", "</script><script>alert(1)//", '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)", "javascript:alert(1)", "<!--", "-->", "]]>", "</style><style>*{}",
    "&lt;b&gt;", "{{7*7}}", "{% raw %}", "${7*7}", "\\u003cscript\\u003e", "</textarea>",
    "<svg/onload=alert(1)>", "</ScRiPt >", "[a](javascript:alert(1))", "| a | b |", "```",
    "\u2028", "\u2029",
)  # fmt: skip
WORDS = (
    "Who wrote Hamlet?", "In what country is Kanpur?", "no", "yes", "Yes and no", "I don't know",
    "not Paris", "Paris or London?", "New York", "1,000", "-5", "3.5 million", "14 December 1972",
    "December 14, 1972", "1939-45", "1990s", "twenty-one", "second hundred", "U.S.", "C++", "n/a",
    "The", "A", "a", "IN", "us", "Q:", "A:", "assistant", "user", "NaN", "inf", "None", "null",
    "9" * 400, "9" * 5000, "9" * 400 + ".5 million", "1e999", "0x10", "½", "²", "٣", "Ⅷ", "ﬁ",
    "İ", "ß", "ı", "e\u0301", "한국", "𝔘𝔫𝔦", "👩‍👩‍👧", "\u202eabc", "\u200b", "\ufeff", "\x00",
    "\x1b[31m", "\x7f", "\u0600", "\u0301", "\U0010ffff", "\ufffe", "\u00a0", "\u3000", "ﷺ",
    "../../etc/passwd", "C:\\", "~", "%s%n", "$(id)", "`id`", "; rm -rf x", "'", '"', "\\", "|",
    "[", "]", "{", ",", ";", "\t", "\n", "\r\n",
)  # fmt: skip
MARKS = "\u200b\u200c\u200d\u200e\u200f\u202a\u202e\u2066\u2069\ufeff\u00ad\u0301\u20dd"
LETTERS = "aA0 .,;:?!'\"-()<>&/\\|eiou"
# First and last code point: ASCII, Latin, right to left, CJK, private, emoji, every other plane.
PLANES = (
    (0, 0x7F), (0x80, 0x24F), (0x590, 0x8FF), (0x3040, 0x9FFF), (0xE000, 0xF8FF),
    (0xFF00, 0xFFFF), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x10000, 0x3FFFF),
    (0xE0000, 0x10FFFF),
)  # fmt: skip
ODD_NUMBERS = (
    math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e308, 10**18, 2**63, -(2**63) - 1, 10**400, 0,
    1, -1, 0.5,
)  # fmt: skip
Made = TypeVar("Made")


def seeded(make: Callable[[Random], Made]) -> st.SearchStrategy[Made]:
    """Inputs of a grammar that draws from one seed: far faster than a draw for each part."""
    return st.integers(0, 2**63).map(lambda seed: make(Random(seed)))


def fuzz(inputs: st.SearchStrategy[Any], check: Callable[[Any], object], few: int = 25) -> Any:
    """A test of `check` with so many inputs; it may raise a UserError with a sentence."""

    @settings(
        max_examples=few * _TIMES,
        database=None,
        deadline=None,
        derandomize=_TIMES == 1,
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs)
    def test(value: Any) -> None:
        message = "nothing was refused"
        try:
            with within(SECONDS):
                check(value)
        except UserError as error:
            message = str(error)
        assert message.strip() and len(message) < 20_000

    return test


class Hang(Exception):
    """An input took too long."""


@contextmanager
def within(seconds: float, *, clock: bool = False) -> Iterator[None]:
    """Raise `Hang` after so many seconds of the processor, or with `clock` of the clock.

    Outside the main thread nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    number, timer = (
        (signal.SIGALRM, signal.ITIMER_REAL) if clock else (signal.SIGPROF, signal.ITIMER_PROF)
    )

    def stop(*_: object) -> None:
        raise Hang(f"an input took more than {seconds:g} s")

    before = signal.signal(number, stop)
    signal.setitimer(timer, seconds, 1.0)  # again, in case the first one is swallowed
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)


def char(r: Random) -> str:
    """One character of any plane; never half of one."""
    kind = r.random()
    if kind < 0.5:
        return r.choice(LETTERS)
    if kind < 0.6:
        return r.choice(MARKS)
    code = r.randint(*r.choice(PLANES))
    return chr(code) if not 0xD800 <= code <= 0xDFFF else "x"


def part(r: Random) -> str:
    """A short text: a known one, or characters."""
    kind = r.random()
    if kind < 0.45:
        return "".join(char(r) for _ in range(r.randint(0, 12)))
    return r.choice(WORDS if kind < 0.75 else SPECIAL if kind < 0.87 else MARKUP)


def text(r: Random) -> str:
    """Some parts, with or without blanks between them."""
    return r.choice(("", " ", " ")).join(part(r) for _ in range(r.choice((1, 1, 2, 3, 6))))


def number(r: Random) -> float:
    """A whole number or not, of any size; also NaN and the infinities."""
    kind = r.random()
    if kind < 0.4:
        return r.choice(ODD_NUMBERS)
    return (
        r.randint(-(10 ** r.randint(0, 25)), 10 ** r.randint(0, 25))
        if kind < 0.7
        else r.gauss(0, 1e3)
    )


def value(r: Random, depth: int = 3) -> Any:
    """Whatever JSON can hold, lone surrogates too."""
    kind = r.random()
    if kind < 0.15 and depth:
        return [value(r, depth - 1) for _ in range(r.randint(0, 4))]
    if kind < 0.25 and depth:
        return {part(r): value(r, depth - 1) for _ in range(r.randint(0, 4))}
    if kind < 0.28:
        return nested(r)
    if kind < 0.5:
        return number(r)
    return (
        text(r) if kind < 0.85 else r.choice((None, True, False, "\ud800", "a\udfffb", [], {}, ""))
    )


def nested(r: Random) -> Any:
    """A list in a list in a list, or the same of objects."""
    inner: Any = r.choice((1, "x", None))
    for _ in range(r.choice((5, 50, 400, 900))):
        inner = [inner] if r.random() < 0.9 else {"a": inner}
    return inner
