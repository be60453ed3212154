"""A real browser on the app: visitors, their questions, and what they asked for elsewhere."""

from __future__ import annotations

from typing import Any

from kit.explore_browser import Heard

OSLO = "Which country is Oslo in?"


def visit(browser: Any, address: str, **options: Any) -> tuple[Any, Heard]:
    """A tab of a visitor of their own, ready."""
    size = options.pop("viewport", {"width": 1400, "height": 1000})
    tab, heard = browser.new_context(viewport=size, **options).new_page(), Heard()
    tab.set_default_timeout(45_000)
    heard.listen(tab)
    tab.goto(address)
    tab.locator("#first .box").wait_for()
    return tab, heard


def elsewhere(heard: Heard, address: str) -> list[str]:
    """Requests to anywhere but the app."""
    return [url for url in heard.requests if not url.startswith((address, "data:", "blob:"))]


def ask(tab: Any, question: str, side: str = "#first") -> None:
    tab.locator("#question textarea").fill(question)
    tab.locator("#ask").click()
    shown = visible(question)
    tab.locator(f"{side} .asked", has_text=shown).wait_for()
    tab.locator(f"{side} svg.beliefs").wait_for()


def visible(text: str) -> str:
    return text.replace("\u202e", "U+202E").replace("\u202c", "U+202C")


def settled(tab: Any, side: str, cut: str) -> None:
    """Waits until exactly these tokens are cut in what the server sent."""
    read = f"[...document.querySelectorAll('{side} [aria-pressed=true]')]"
    joined = f"{read}.map(b => b.innerText).join('') === {cut!r}"
    tab.wait_for_function(f"{joined} && !document.querySelector('{side} .busy')")
