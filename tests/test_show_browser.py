"""The report in a real browser: switches, legend, numbers under the pointer, phones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from kit.browser import CHROMIUM, Heard
from kit.show_fixture import add_claims, make_run

from anchorscope.run_folder.view import RunView, where
from anchorscope.show import write_report

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

EVIL = '<img src=x onerror="window.hacked=1"></script>'


def opened(browser, run: RunView):
    """A phone's tab with the run's report, and what the tab said and asked for."""
    tab, heard = browser.new_page(viewport={"width": 390, "height": 800}), Heard()
    heard.listen(tab)
    tab.goto(write_report(run).as_uri())
    tab.wait_for_selector("#controls svg")
    return tab, heard


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    names = {"atlas": "Atlas", "x": EVIL}
    folder = tmp_path_factory.mktemp("browser") / "run"
    return add_claims(make_run(folder, datasets=names, layers=6, n=60, model=EVIL))


@pytest.fixture(scope="module")
def page(browser, run: RunView) -> Iterator:
    tab, heard = opened(browser, run)
    yield tab
    assert heard.errors == [] and heard.outside() == []
    assert sum(url.startswith("file:") for url in heard.requests) == 1  # the page itself
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("img").count() == 0
    tab.close()


def places(tab, label: str) -> np.ndarray:
    """The y coordinates, in pixels, of the curve of that label in the figure of ΔP."""
    path = tab.locator("#delta-p path.curve:not(.control)")
    (drawn,) = path.evaluate_all(
        "(all, l) => all.filter(p => p.dataset.label === l).map(p => p.getAttribute('d'))", label
    )
    return np.array([float(point.split(",")[1]) for point in drawn.strip("M").split("L")])


def test_the_switch_draws_the_tables_numbers_of_its_mode(page, run: RunView) -> None:
    for mode in ("strict", "paper"):
        page.get_by_role("button", name=f"{mode.capitalize()} mode").click()
        rows = where(run.layers, dataset="atlas", mode=mode, pathway="Q").sort_values("layer")
        drawn = places(page, "Q-Anchored (Atlas)")
        assert abs(np.corrcoef(drawn, rows["delta_p"])[0, 1] + 1) < 1e-4  # downwards in pixels
        pressed = page.locator(".switch button[aria-pressed=true]").first
        assert pressed.inner_text() == f"{mode.capitalize()} mode"
    page.locator("#delta-p").focus()
    page.keyboard.press("ArrowRight")
    (first,) = run.layers.query(
        "dataset == 'atlas' and mode == 'paper' and pathway == 'Q' and layer == 1"
    ).to_dict("records")
    said = page.locator("#delta-p .tip").inner_text().replace("−", "-")
    assert "Layer 1" in said and f"{first['delta_p']:.1f} (" in said and f"n = {first['n']}" in said


def test_the_legend_hides_a_curve_and_writes_names_as_text(page) -> None:
    legend = page.locator("#delta-p + .legend button")
    assert legend.nth(2).inner_text() == f"Q-Anchored ({EVIL})"
    curves = page.locator("#delta-p path.curve:not(.control)")
    before = curves.count()
    legend.first.click()
    assert curves.count() == before - 1
    assert page.locator("#delta-p path[data-label='Q-Anchored (Atlas)']").count() == 0
    legend.first.click()
    assert curves.count() == before


def test_a_phone_and_a_desk_show_the_page_without_scrolling_sideways(page) -> None:
    figure, said = page.locator(".opening figure"), page.locator(".opening .said")
    claims = page.locator(".claims").first
    inside, whole = claims.evaluate("e => [e.clientWidth, e.scrollWidth]")
    assert whole > inside  # a wide table scrolls in its own box
    assert said.bounding_box()["y"] >= figure.bounding_box()["y"] + figure.bounding_box()["height"]
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.set_viewport_size({"width": 1400, "height": 900})
    page.wait_for_function("document.querySelector('#delta-p svg').clientWidth > 500")
    one, other = figure.bounding_box(), said.bounding_box()
    assert other["x"] >= one["x"] + one["width"] and max(one["y"], other["y"]) < 400
    assert page.evaluate("document.documentElement.scrollWidth") == 1400
    page.set_viewport_size({"width": 390, "height": 800})


def test_dark_pages_have_dark_charts_and_a_link_unfolds_a_meaning(page) -> None:
    ink = "getComputedStyle(document.querySelector('#probes .tick')).fill"
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ink) != light
    page.emulate_media(color_scheme="light")
    meaning = page.locator("li[id^=finding-]").first
    assert not meaning.is_visible()
    page.locator("#findings h3 a").first.click()
    meaning.wait_for(state="visible")


def test_unfolded_evidence_fits_a_phone_and_a_view_brings_its_own_axis(
    browser, evidence_run
) -> None:
    tab, heard = opened(browser, evidence_run)
    for piece, mark in (
        ("patching", "path.curve"),
        ("heads", "rect.head"),
        ("saliency", "path.curve"),
        ("boundary", "path.curve"),
    ):
        place = tab.locator(f"#evidence-{piece}")
        tab.locator("details", has=place).locator("summary").first.click()
        place.locator(mark).first.wait_for(state="attached")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    title = tab.locator("#evidence-boundary .label").last
    for name, text in (("Accuracy", "Answered right (%)"), ("Popularity", "Popularity (powers")):
        tab.get_by_role("button", name=f"{name}, strict mode").click()
        assert title.text_content().startswith(text)
    assert heard.errors == []
    tab.close()
