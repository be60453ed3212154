"""The app in a real browser: ask, cut tokens, compare subjects, visitors apart."""

from __future__ import annotations

import re

import pytest
from kit.app_browser import OSLO, ask, elsewhere, settled, visit
from kit.app_server import served
from kit.explore_browser import CHROMIUM

pytest.importorskip("gradio", reason="gradio is not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from anchorscope.app import state as steps
from anchorscope.app.state import AppState, Growth
from anchorscope.inspection.choices import Choices
from anchorscope.inspection.question import RecordedAnswer

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture
def tab(browser, address):
    opened, heard = visit(browser, address)
    yield opened
    opened.context.close()
    assert heard.errors == []
    assert elsewhere(heard, address) == []


def test_the_answer_grows_token_by_token_and_ends_as_it_is_read(app_state: AppState) -> None:
    events = list(app_state.stream(OSLO, "atlas"))
    growths, exchange = events[:-1], events[-1]
    assert isinstance(exchange, RecordedAnswer) and all(
        isinstance(step, Growth) for step in growths
    )
    assert [len(step.tokens) for step in growths] == [1, 2, 3, 4, 5]
    assert "".join(growths[-1].tokens) == exchange.sample.answer.text
    assert all(step.wrong == growths[-1].wrong[: len(step.wrong)] for step in growths)
    one = app_state.read(exchange, Choices(), "strict")
    assert growths[-1].wrong == pytest.approx(one.growth)
    assert one.growth[-1] == pytest.approx(one.wrong.probability)


def test_ask_then_cut_and_keep_a_token(tab, app_state: AppState) -> None:
    ask(tab, OSLO)
    settled(tab, "#first", "countryOslo")
    exchange = list(app_state.stream(OSLO, "atlas"))[-1]
    one = app_state.read(exchange, Choices(), "strict")
    assert tab.locator("#first .big b").first.inner_text() == f"{one.wrong.probability:.0%}"
    assert tab.locator("#first .group").inner_text() == one.pathway.pathway
    line = tab.locator('#first path[data-pass="knockout"]')
    before = line.get_attribute("d")
    tab.locator("#first button.token", has_text=re.compile("^W$")).first.click()
    settled(tab, "#first", "WcountryOslo")
    tab.locator("#first button.token", has_text=re.compile("^y$")).first.click()  # of "country"
    settled(tab, "#first", "WcountrOslo")
    cut = tuple(int(t) for t in tab.locator("#first [aria-pressed=true]").evaluate_all(
        "tokens => tokens.map(t => t.dataset.token)"))  # fmt: skip
    chosen = app_state.read(exchange, Choices(cut=cut), "strict")
    numbers = re.findall(r"chosen tokens cut ([\d.]+)", tab.locator("#first").inner_text())
    assert float(numbers[0]) == pytest.approx(chosen.beliefs["knockout"][one.layer - 1], abs=0.0051)
    assert line.get_attribute("d") != before
    tab.locator("#again").click()
    settled(tab, "#first", "countryOslo")
    assert line.get_attribute("d") == before


def test_the_keyboard_asks_and_cuts_and_keeps_its_place(tab) -> None:
    tab.locator("#question textarea").focus()
    tab.keyboard.type(OSLO)
    tab.keyboard.press("Enter")
    tab.locator("#first svg.beliefs").wait_for()
    token = tab.locator("#first button.token", has_text=re.compile("^O$")).first
    number = token.get_attribute("data-token")
    token.focus()
    tab.keyboard.press("Enter")
    settled(tab, "#first", "countryslo")
    tab.wait_for_function(f"document.activeElement.dataset.token === '{number}'")
    tab.keyboard.press("Space")
    settled(tab, "#first", "countryOslo")


def test_the_same_question_about_another_subject_stands_beside(tab, app_state: AppState) -> None:
    ask(tab, OSLO)
    tab.locator("#subject").locator("input, textarea").fill("Rome")
    tab.locator("#beside").click()
    tab.locator("#second svg.beliefs").wait_for()
    assert tab.locator("#first .asked").inner_text() == OSLO
    assert tab.locator("#second .asked").inner_text() == OSLO.replace("Oslo", "Rome")
    settled(tab, "#second", "countryRome")
    tab.locator("#second button.token", has_text=re.compile("^R$")).first.click()
    settled(tab, "#second", "countryome")
    settled(tab, "#first", "countryOslo")  # the other side stays as it is
    tab.get_by_label(steps.PATCH).check()
    tab.locator('#first path[data-pass="patch"]').wait_for(state="attached")
    assert tab.locator('#second path[data-pass="patch"]').count() == 0


def test_switches_add_and_remove_passes(tab) -> None:
    ask(tab, OSLO)
    passes = "paths => paths.map(p => p.dataset.pass)"
    assert tab.locator("#first path.belief").evaluate_all(passes) == [
        "clean", "knockout", "neutral", "answer-only"]  # fmt: skip
    tab.get_by_label(steps.NEUTRAL).uncheck()
    tab.locator('#first path[data-pass="neutral"]').wait_for(state="detached")
    tab.locator("#heads").locator("input, textarea").fill("2.1, 3.0")
    tab.keyboard.press("Enter")
    tab.locator('#first path[data-pass="heads"]').wait_for(state="attached")
    tab.locator("#window input").click()
    tab.get_by_role("option", name="the last 2").click()
    tab.locator('#first path[data-pass="window"]').wait_for(state="attached")
    assert "cut in the last 2 blocks only" in tab.locator("#first .key").inner_text()
    tab.get_by_label("paper").check()
    tab.get_by_text("P(wrong) by layer, paper mode").wait_for()


def test_no_click_is_lost_while_a_step_still_runs(tab) -> None:
    """Three switches and two tokens without a pause: all of them count in the end."""
    ask(tab, OSLO)
    tab.evaluate("""() => {
      const box = text => [...document.querySelectorAll("#switches label")]
        .find(label => label.innerText.trim() === text).querySelector("input");
      box("neutral tokens").click();
      box("answer without question").click();
      [...document.querySelectorAll("#mode label")]
        .find(label => label.innerText.trim() === "paper").querySelector("input").click();
    }""")
    tab.get_by_text("P(wrong) by layer, paper mode").wait_for()
    passes = "paths => paths.map(p => p.dataset.pass)"
    tab.locator('#first path[data-pass="neutral"]').wait_for(state="detached")
    assert tab.locator("#first path.belief").evaluate_all(passes) == ["clean", "knockout"]
    tab.evaluate("""() => [...document.querySelectorAll("#first button.token")]
      .filter(token => ["W", "h"].includes(token.innerText)).slice(0, 2)
      .forEach(token => token.click())""")
    settled(tab, "#first", "WhcountryOslo")


def test_visitors_do_not_see_each_other(browser, address) -> None:
    pairs = [visit(browser, address) for _ in range(2)]
    texts = [OSLO, "Which country is Bern in?"]
    for (tab, _), text in zip(pairs, texts, strict=True):  # both before either has an answer
        tab.locator("#question textarea").fill(text)
        tab.locator("#ask").click(no_wait_after=True)
    for (tab, _), text in zip(pairs, texts, strict=True):
        tab.locator("#first svg.beliefs").wait_for()
        assert tab.locator("#first .asked").inner_text() == text
    pairs[0][0].locator("#first button.token", has_text=re.compile("^O$")).first.click()
    pairs[1][0].locator("#first button.token", has_text=re.compile("^B$")).first.click()
    settled(pairs[0][0], "#first", "countryslo")
    settled(pairs[1][0], "#first", "countryern")
    for tab, heard in pairs:
        tab.context.close()
        assert heard.errors == []


def test_bad_input_gets_a_friendly_line(tab) -> None:
    tab.locator("#ask").click()
    tab.locator("#first .box", has_text="Type a question, or pick one of the run's.").wait_for()
    tab.locator("#beside").click()
    tab.locator("#second .box", has_text="Ask a question on the left first.").wait_for()
    ask(tab, OSLO)
    tab.locator("#beside").click()
    tab.locator("#second .box", has_text="Type another subject first").wait_for()
    tab.locator("#heads").locator("input, textarea").fill("9.9")
    tab.keyboard.press("Enter")
    tab.locator("#first + *, #first .box", has_text="There is no head 9.9").first.wait_for()
    assert tab.locator("#first svg.beliefs").count() == 1
    tab.locator("#question textarea").fill("?")
    tab.locator("#ask").click()
    tab.locator("#first .asked", has_text="?").wait_for()


def test_a_visitor_with_the_password_gets_in(browser, app_state: AppState) -> None:
    with served(app_state, password="correct horse") as address:
        tab = browser.new_context().new_page()
        tab.set_default_timeout(45_000)
        tab.goto(address)
        tab.get_by_label("username").fill("anchorscope")
        tab.get_by_label("password").fill("wrong horse")
        tab.get_by_role("button", name="Login").click()
        tab.get_by_text("Incorrect Credentials").wait_for()
        tab.get_by_label("username").fill("anchorscope")
        tab.get_by_label("password").fill("correct horse")
        tab.get_by_role("button", name="Login").click()
        tab.locator("#first .box").wait_for()
        ask(tab, OSLO)
        tab.context.close()


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_follows_the_scheme(browser, address, width, scheme) -> None:
    size = {"width": width, "height": 900}
    tab, heard = visit(browser, address, viewport=size, color_scheme=scheme)
    ask(tab, OSLO)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    paper = tab.locator("#first .panel").evaluate("p => getComputedStyle(p).backgroundColor")
    assert paper == ("rgb(20, 23, 29)" if scheme == "dark" else "rgb(255, 255, 255)")
    assert heard.errors == []
    tab.context.close()
