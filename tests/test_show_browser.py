"""The report in a real browser: no errors, no requests, switches, and charts that unfold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit.evidence_fixture import simulated_run
from kit.explore_browser import CHROMIUM, Heard
from kit.show_fixture import make_run
from kit.strict_fixture import add_strict

from anchorscope.run_folder.view import RunView, where
from anchorscope.show import write_report

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

EVIL = '<img src=x onerror="window.hacked=1"></script>'
WIDTH = "id => document.getElementById(id).querySelector('.main-svg').getBoundingClientRect().width"
READ = (
    "id => document.getElementById(id).data.filter(t => t.meta).map(t => [t.name, t.y, t.visible])"
)
DRAWN = """([low, high]) => {
    const width = document.querySelector('#delta-p .main-svg').getBoundingClientRect().width;
    return low < width && width < high;
}"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    names = {"atlas": "Atlas", "x": EVIL}
    folder = tmp_path_factory.mktemp("browser") / "run"
    return add_strict(make_run(folder, datasets=names, layers=6, n=60, model=EVIL))


@pytest.fixture(scope="module")
def seen() -> Heard:
    return Heard()


@pytest.fixture(scope="module")
def page(browser, run: RunView, seen: Heard) -> Iterator:
    tab = browser.new_page(viewport={"width": 390, "height": 800})
    seen.listen(tab)
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


def test_a_link_unfolds_what_a_finding_means(page) -> None:
    meaning = page.locator("li[id^=finding-]").first
    assert not meaning.is_visible()
    page.locator("#findings h3 a").first.click()
    meaning.wait_for(state="visible")


def test_after_all_that_no_errors_and_no_requests(page, seen: Heard) -> None:
    assert seen.errors == []
    assert seen.outside() == []
    assert sum(url.startswith("file:") for url in seen.requests) == 1  # the page itself
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


@pytest.fixture(scope="module")
def evidence(browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """The report of a run with all evidence, and what its tab said."""
    run, heard = simulated_run(tmp_path_factory.mktemp("unfold") / "run"), Heard()
    tab = browser.new_page(viewport={"width": 390, "height": 800})
    heard.listen(tab)
    tab.goto(write_report(run).as_uri())
    tab.wait_for_selector("#controls .main-svg")
    yield tab
    tab.close()
    assert heard.errors == []


@pytest.mark.parametrize("piece", ["patching", "heads", "saliency"])
def test_an_unfolded_chart_fits_a_phone(evidence, piece: str) -> None:
    chart = f"evidence-{piece}"
    evidence.locator("details", has=evidence.locator(f"#{chart}")).locator("summary").click()
    evidence.wait_for_function(f"id => {{ const w = ({WIDTH})(id); return w > 200 && w <= 390; }}",
                           arg=chart)  # fmt: skip
    assert evidence.evaluate("document.documentElement.scrollWidth") == 390


def test_a_view_brings_its_own_axis(evidence) -> None:
    """Accuracy counts percent and popularity powers of ten: one axis cannot serve both."""
    evidence.locator("details", has=evidence.locator("#evidence-boundary")).locator(
        "summary"
    ).click()
    read = "document.getElementById('evidence-boundary').layout.yaxis.title.text"
    for name, title in (("Accuracy", "Answered right (%)"), ("Popularity", "Popularity (powers")):
        evidence.get_by_role("button", name=f"{name}, strict mode").click()
        evidence.wait_for_function(f"t => {read}.startsWith(t)", arg=title)
