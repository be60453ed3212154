"""Open the pages in a real browser; record errors, requests and dialogs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OSLO = "Which country is Oslo in?"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]


@dataclass
class Heard:
    """Errors, requests and dialogs of a browser tab since it was opened."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def listen(self, tab: Any) -> None:
        tab.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        tab.on("pageerror", lambda e: self.errors.append(str(e)))
        tab.on("request", lambda r: self.requests.append(r.url))
        tab.on("dialog", self._dismiss)

    def _dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def outside(self) -> list[str]:
        """Requests to anywhere but the page itself."""
        return [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def open_page(browser: Any, address: str, **options: Any) -> tuple[Any, Heard]:
    """Open the page in a tab and wait until its table is there."""
    size = options.pop("viewport", {"width": 1400, "height": 900})
    tab, heard = browser.new_page(viewport=size, **options), Heard()
    heard.listen(tab)
    tab.goto(address)
    tab.wait_for_selector("#table tbody tr")
    return tab, heard


def rows_of(tab: Any) -> list[list[str]]:
    """The displayed cells of all pages of the table."""
    read = "table => [...table.tBodies[0].rows].map(r => [...r.cells].map(c => c.innerText))"
    rows = list(tab.locator("#table").evaluate(read))
    while tab.locator("[data-page=next]:enabled").count():
        tab.locator("[data-page=next]").click()
        rows += tab.locator("#table").evaluate(read)
    return rows


def harmed(tab: Any, heard: Heard, place: str = "body") -> list[str]:
    """What text has done which text may not do: dialogs, images, hidden characters."""
    found = [f"dialog {said}" for said in heard.dialogs]
    found += [f"{n} images" for n in [tab.locator(f"{place} img").count()] if n]
    hidden = r"/[\u202a-\u202e\u2066-\u2069\u200b\u0007]/"
    raw = tab.evaluate(f"{hidden}.test(document.querySelector('{place}').innerText)")
    return found + (["hidden characters"] if raw else [])


# The app


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
