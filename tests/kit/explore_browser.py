"""Open the page of samples in a real browser; record errors, requests and dialogs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
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
