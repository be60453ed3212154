"""Open the app in a real browser: visitors, their questions, and requests to other addresses."""

from __future__ import annotations

import time
from typing import Any

from kit.explore_browser import Heard

OSLO = "Which country is Oslo in?"


def visit(browser: Any, address: str, **options: Any) -> tuple[Any, Heard]:
    """Open the app in a new browser context and wait until it is ready."""
    size = options.pop("viewport", {"width": 1400, "height": 1000})
    tab, heard = browser.new_context(viewport=size, **options).new_page(), Heard()
    heard.listen(tab)
    tab.goto(address)
    tab.locator("#first .box").wait_for()
    return tab, heard


def elsewhere(heard: Heard, address: str) -> list[str]:
    """Requests to anywhere but the app."""
    return [url for url in heard.requests if not url.startswith((address, "data:", "blob:"))]


def ask(tab: Any, question: str) -> None:
    tab.locator("#question").fill(question)
    tab.locator("#ask").click()
    shown = question.replace("\u202e", "U+202E").replace("\u202c", "U+202C")
    tab.locator("#first .asked", has_text=shown).wait_for()
    tab.locator("#first svg.beliefs").wait_for()


def settled(tab: Any, side: str, cut: str) -> None:
    """Wait until the server's panel shows exactly these tokens as cut."""
    read = f"[...document.querySelectorAll('{side} [aria-pressed=true]')]"
    joined = f"{read}.map(b => b.innerText).join('') === {cut!r}"
    until(tab, f"{joined} && !document.querySelector('{side} .busy')")


def until(tab: Any, expression: str) -> None:
    """Wait until an expression is true; the page's policy forbids `wait_for_function`."""
    end = time.monotonic() + 45
    while not tab.evaluate(expression):
        assert time.monotonic() < end, expression
        tab.wait_for_timeout(20)
