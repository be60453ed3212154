"""The report in a real browser: no errors, no requests, and a switch that switches."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from kit.show_fixture import make_run
from kit.strict_fixture import add_strict

from anchorscope.run_folder.view import RunView, where
from anchorscope.show import write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
EVIL = '<img src=x onerror="window.hacked=1"></script>'
READ = (
    "id => document.getElementById(id).data.filter(t => t.meta).map(t => [t.name, t.y, t.visible])"
)
DRAWN = """([low, high]) => {
    const width = document.querySelector('#delta-p .main-svg').getBoundingClientRect().width;
    return low < width && width < high;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def seen() -> dict[str, list[str]]:
    return {"errors": [], "requests": []}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    names = {"atlas": "Atlas", "x": EVIL}
    folder = tmp_path_factory.mktemp("browser") / "run"
    return add_strict(make_run(folder, datasets=names, layers=6, n=60, model=EVIL))


@pytest.fixture(scope="module")
def page(browser, run: RunView, seen: dict[str, list[str]]) -> Iterator:
    tab = browser.new_page(viewport={"width": 390, "height": 800})
    tab.on("console", lambda m: seen["errors"].append(m.text) if m.type == "error" else None)
    tab.on("pageerror", lambda e: seen["errors"].append(str(e)))
    tab.on("request", lambda r: seen["requests"].append(r.url))
    tab.goto(write_report(run).as_uri())
    tab.wait_for_selector("#controls .main-svg")
    yield tab
    tab.close()


def test_the_page_fits_a_phone(page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_wide_table_scrolls_in_its_own_box(page) -> None:
    sizes = "e => [e.clientWidth, e.scrollWidth, e.getBoundingClientRect().right]"
    inside, whole, right = page.locator(".claims").first.evaluate(sizes)
    assert whole > inside and right <= 390
    first = page.locator(".claims tbody th").first
    left = first.bounding_box()["x"]
    page.locator(".claims").first.evaluate("e => { e.scrollLeft = 200; }")
    assert first.bounding_box()["x"] == left  # the claim stays in sight beside its verdicts
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_the_picture_opens_the_page_with_its_sentences_beside_or_below(page) -> None:
    figure, said = page.locator(".opening figure"), page.locator(".opening .said")
    assert said.bounding_box()["y"] >= figure.bounding_box()["y"] + figure.bounding_box()["height"]
    page.set_viewport_size({"width": 1400, "height": 900})
    page.wait_for_function(DRAWN, arg=[500, 1400])
    one, other = figure.bounding_box(), said.bounding_box()
    assert other["x"] >= one["x"] + one["width"]
    assert max(one["y"], other["y"]) < 400  # both begin on the first screen
    assert page.evaluate("document.documentElement.scrollWidth") == 1400
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function(DRAWN, arg=[200, 390])


def test_the_switch_changes_what_is_drawn(page, run: RunView) -> None:
    for mode in ("strict", "paper"):
        page.get_by_role("button", name=f"{mode.capitalize()} mode").click()
        drawn = {name: y for name, y, _ in page.evaluate(READ, "delta-p")}
        rows = where(run.layers, dataset="atlas", mode=mode, pathway="Q")
        assert drawn["Q-Anchored (Atlas)"] == pytest.approx(rows["delta_p"].tolist())
        button = page.locator(".switch button[aria-pressed=true]").first
        assert button.inner_text() == f"{mode.capitalize()} mode"


def test_the_legend_hides_a_curve_and_writes_names_as_text(page) -> None:
    legend = page.locator("#delta-p + .legend button")
    assert legend.nth(2).inner_text() == f"Q-Anchored ({EVIL})"
    legend.first.click()
    shown = {name: visible for name, _, visible in page.evaluate(READ, "delta-p")}
    assert shown["Q-Anchored (Atlas)"] is False
    assert shown["A-Anchored (Atlas)"] is True
    legend.first.click()
    assert all(visible for _, _, visible in page.evaluate(READ, "delta-p"))


def test_dark_pages_have_dark_charts(page) -> None:
    def ink() -> str:
        return page.evaluate("document.getElementById('probes').layout.font.color")

    light = ink()
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "c => document.getElementById('probes').layout.font.color !== c", arg=light
    )
    assert (light, ink()) == ("#1d2330", "#e4e7ec")
    page.emulate_media(color_scheme="light")


def test_after_all_that_no_errors_and_no_requests(page, seen: dict[str, list[str]]) -> None:
    outside = [url for url in seen["requests"] if not url.startswith(("file:", "data:"))]
    assert seen["errors"] == []
    assert outside == []
    assert sum(url.startswith("file:") for url in seen["requests"]) == 1  # the page itself
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
