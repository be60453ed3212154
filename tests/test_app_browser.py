"""The app in a real browser: ask, cut tokens, compare subjects, visitors apart, text as text."""

from __future__ import annotations

import re

import pytest
from kit.browser import CHROMIUM, OSLO, ask, elsewhere, harmed, settled, until, visit
from kit.explore_fixture import IMAGE, START, TURNED

from anchorscope.app import page as app
from anchorscope.app.page import AppState, Step
from anchorscope.inspection.result import Choices

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
SEEN = "U+202EgnorwU+202C"  # what is left of the direction marks
HOSTILE = f"{START}{IMAGE}{TURNED} Where is Oslo?"


@pytest.fixture
def tab(browser, address):
    opened, heard = visit(browser, address)
    yield opened
    opened.context.close()
    assert heard.errors == []
    assert elsewhere(heard, address) == []


def token(tab, side: str, text: str):
    return tab.locator(f"{side} button.token", has_text=re.compile(f"^{text}$")).first


def passes(tab, side: str = "#first") -> list[str]:
    drawn = tab.locator(f"{side} path.belief")
    return drawn.evaluate_all("paths => paths.map(p => p.dataset.pass)")


def test_the_answer_grows_token_by_token_and_ends_as_it_is_read(app_state: AppState) -> None:
    app_state._answers.clear()
    *growing, whole = app_state.stream(Step(question=OSLO, dataset="atlas"))
    assert [html.count('class="grown"') for html in growing] == [1, 2, 3, 4, 5]
    inspector = app_state.inspector("atlas")
    one = inspector.read(inspector.ask(OSLO))
    for html, count in zip(growing, range(1, 6), strict=True):
        shown = re.findall(r"<small[^>]*>(\d+)%</small>", html)
        assert shown == [f"{100 * wrong:.0f}" for wrong in one.growth[:count]]
    assert 'class="belief"' in whole and one.growth[-1] == pytest.approx(one.wrong.probability)
    (again,) = app_state.stream(Step(question=OSLO, dataset="atlas"))  # the answer is remembered
    assert again == whole


def test_ask_then_cut_and_keep_a_token(tab, app_state: AppState) -> None:
    ask(tab, OSLO)
    settled(tab, "#first", "countryOslo")
    inspector = app_state.inspector("atlas")
    exchange = inspector.ask(OSLO)
    one = inspector.read(exchange)
    assert tab.locator("#first .big b").first.inner_text() == f"{one.wrong.probability:.0%}"
    assert tab.locator("#first .group").inner_text() == one.pathway.pathway
    line = tab.locator('#first path[data-pass="knockout"]')
    before = line.get_attribute("d")
    token(tab, "#first", "W").click()
    settled(tab, "#first", "WcountryOslo")
    token(tab, "#first", "y").click()  # of "country"
    settled(tab, "#first", "WcountrOslo")
    cut = tuple(int(t) for t in tab.locator("#first [aria-pressed=true]").evaluate_all(
        "tokens => tokens.map(t => t.dataset.token)"))  # fmt: skip
    chosen = inspector.read(exchange, Choices(cut=cut))
    numbers = re.findall(r"chosen tokens cut ([\d.]+)", tab.locator("#first").inner_text())
    assert float(numbers[0]) == pytest.approx(chosen.beliefs["knockout"][one.layer - 1], abs=0.0051)
    assert line.get_attribute("d") != before
    tab.locator("#again").click()
    settled(tab, "#first", "countryOslo")
    assert line.get_attribute("d") == before


def test_the_keyboard_asks_and_cuts_and_keeps_its_place(tab) -> None:
    tab.locator("#question").focus()
    tab.keyboard.type(OSLO)
    tab.keyboard.press("Enter")
    tab.locator("#first svg.beliefs").wait_for()
    number = token(tab, "#first", "O").get_attribute("data-token")
    token(tab, "#first", "O").focus()
    tab.keyboard.press("Enter")
    settled(tab, "#first", "countryslo")
    until(tab, f"document.activeElement.dataset.token === '{number}'")
    tab.keyboard.press("Space")
    settled(tab, "#first", "countryOslo")


def test_the_same_question_about_another_subject_is_beside_it(tab) -> None:
    ask(tab, OSLO)
    tab.locator("#subject").fill("Rome")
    tab.locator("#beside").click()
    tab.locator("#second svg.beliefs").wait_for()
    assert tab.locator("#first .asked").inner_text() == OSLO
    assert tab.locator("#second .asked").inner_text() == OSLO.replace("Oslo", "Rome")
    settled(tab, "#second", "countryRome")
    token(tab, "#second", "R").click()
    settled(tab, "#second", "countryome")
    settled(tab, "#first", "countryOslo")  # the other side stays as it is
    tab.locator("#patch").check()
    tab.locator('#first path[data-pass="patch"]').wait_for(state="attached")
    assert "patch" not in passes(tab, "#second")


def test_switches_add_and_remove_passes(tab) -> None:
    ask(tab, OSLO)
    assert passes(tab) == ["clean", "knockout", "neutral", "answer-only"]
    tab.locator("#neutral").uncheck()
    tab.locator('#first path[data-pass="neutral"]').wait_for(state="detached")
    tab.locator("#heads").fill("2.1, 3.0")
    tab.keyboard.press("Enter")
    tab.locator('#first path[data-pass="heads"]').wait_for(state="attached")
    tab.locator("#window").select_option("2")
    tab.locator('#first path[data-pass="window"]').wait_for(state="attached")
    assert "cut in the last 2 blocks only" in tab.locator("#first .key").inner_text()
    tab.get_by_label("paper").check()
    tab.get_by_text("P(wrong) by layer, paper mode").wait_for()


def test_no_click_is_lost_while_a_step_still_runs(tab) -> None:
    """Three switches and two tokens without a pause: all of them count in the end."""
    ask(tab, OSLO)
    tab.evaluate("""() => {
      for (const what of ["#neutral", "#answer_only", "#mode input:not(:checked)"])
        document.querySelector(what).click();
    }""")
    tab.get_by_text("P(wrong) by layer, paper mode").wait_for()
    tab.locator('#first path[data-pass="neutral"]').wait_for(state="detached")
    assert passes(tab) == ["clean", "knockout"]
    tab.evaluate("""() => [...document.querySelectorAll("#first button.token")]
      .filter(token => ["W", "h"].includes(token.innerText)).slice(0, 2)
      .forEach(token => token.click())""")
    settled(tab, "#first", "WhcountryOslo")


def test_visitors_do_not_see_each_other(browser, address) -> None:
    pairs = [visit(browser, address) for _ in range(2)]
    texts = [OSLO, "Which country is Bern in?"]
    for (tab, _), text in zip(pairs, texts, strict=True):  # both before either has an answer
        tab.locator("#question").fill(text)
        tab.locator("#ask").click(no_wait_after=True)
    for (tab, _), text in zip(pairs, texts, strict=True):
        tab.locator("#first svg.beliefs").wait_for()
        assert tab.locator("#first .asked").inner_text() == text
    token(pairs[0][0], "#first", "O").click()
    token(pairs[1][0], "#first", "B").click()
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
    tab.locator("#heads").fill("9.9")
    tab.keyboard.press("Enter")
    tab.locator("#first .box", has_text="There is no head 9.9").wait_for()
    assert tab.locator("#first svg.beliefs").count() == 1
    tab.locator("#patch").check()
    tab.locator("#first .box", has_text="or switch that change off").wait_for()


def test_more_steps_than_may_wait_are_told_to_come_back(browser, address, app_state) -> None:
    tab, _ = visit(browser, address)
    ask(tab, OSLO)
    with app_state._lock:  # the model is busy
        waiting = [app_state.stream(Step(question=OSLO, dataset="atlas")) for _ in range(app.QUEUE)]
        tab.locator("#neutral").uncheck()
        tab.locator("#first .box", has_text="Many are asking at once").wait_for()
    assert [len(list(each)) for each in waiting] == [1] * app.QUEUE
    tab.context.close()


def test_a_fault_of_ours_is_one_line_for_the_visitor(app_state: AppState, monkeypatch) -> None:
    monkeypatch.setattr(AppState, "_panel", lambda *_: 1 / 0)
    (html,) = app_state.stream(Step(question=OSLO, dataset="atlas"))
    assert "That went wrong on our side" in html and "ZeroDivision" not in html


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1400, "light")])
def test_the_page_fits_and_follows_the_scheme(browser, address, width, scheme) -> None:
    size = {"width": width, "height": 900}
    tab, heard = visit(browser, address, viewport=size, color_scheme=scheme)
    ask(tab, OSLO)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    paper = tab.locator("#first .panel").evaluate("p => getComputedStyle(p).backgroundColor")
    assert paper == ("rgb(20, 23, 29)" if scheme == "dark" else "rgb(255, 255, 255)")
    assert heard.errors == []
    tab.context.close()


def test_hostile_text_is_shown_as_text(browser, address) -> None:
    tab, heard = visit(browser, address)
    ask(tab, HOSTILE)
    tab.locator("#subject").fill(f"{IMAGE}{TURNED}")
    tab.locator("#patch").check()
    tab.locator("#beside").click()
    tab.locator("#second svg.beliefs").wait_for()
    tab.locator("#first .key", has_text="another subject").wait_for()
    assert tab.locator("#first .asked").inner_text() == f"{START}{IMAGE}{SEEN} Where is Oslo?"
    answer = tab.locator("#first .said b").inner_text()
    assert IMAGE in answer and SEEN in answer
    tokens = tab.locator("#first .tokens .token").all_inner_texts()
    assert START in tokens and IMAGE in tokens and SEEN in tokens  # a token each
    assert f"another subject: {IMAGE}{SEEN}" in tab.locator("#first .key").inner_text()
    tab.wait_for_timeout(300)
    assert harmed(tab, heard, "#panels") == []
    assert heard.errors == [] and elsewhere(heard, address) == []
    tab.context.close()
