"""Folded charts of the report: they take the page's width when unfolded, and say no error."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from kit.evidence_fixture import simulated_run

from anchorscope.show import write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
WIDTH = "id => document.getElementById(id).querySelector('.main-svg').getBoundingClientRect().width"


@pytest.fixture(scope="module")
def errors() -> list[str]:
    return []


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, errors: list[str]) -> Iterator:
    run = simulated_run(tmp_path_factory.mktemp("unfold") / "run")
    with sync_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        tab = browser.new_page(viewport={"width": 390, "height": 800})
        tab.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        tab.on("pageerror", lambda e: errors.append(str(e)))
        tab.goto(write_report(run).as_uri())
        tab.wait_for_selector("#controls .main-svg")
        yield tab
        browser.close()


@pytest.mark.parametrize("piece", ["patching", "heads", "saliency"])
def test_an_unfolded_chart_fits_a_phone(page, piece: str) -> None:
    chart = f"evidence-{piece}"
    page.locator("details", has=page.locator(f"#{chart}")).locator("summary").click()
    page.wait_for_function(f"id => {{ const w = ({WIDTH})(id); return w > 200 && w <= 390; }}",
                           arg=chart)  # fmt: skip
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_view_brings_its_own_axis(page, errors: list[str]) -> None:
    """Accuracy counts percent and popularity powers of ten: one axis cannot serve both."""
    page.locator("details", has=page.locator("#evidence-boundary")).locator("summary").click()
    read = "document.getElementById('evidence-boundary').layout.yaxis.title.text"
    for name, title in (("Accuracy", "Answered right (%)"), ("Popularity", "Popularity (powers")):
        page.get_by_role("button", name=f"{name}, strict mode").click()
        page.wait_for_function(f"t => {read}.startsWith(t)", arg=title)
    assert errors == []
