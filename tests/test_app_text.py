"""Text of models and visitors in the app: text, whatever it says, and no request elsewhere."""

from __future__ import annotations

import random

import pytest
from kit.app_browser import OSLO, ask, elsewhere, visit
from kit.explore_browser import CHROMIUM, Heard
from kit.explore_fixture import IMAGE, START, TURNED

pytest.importorskip("gradio", reason="gradio is not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from anchorscope.app import state as steps
from anchorscope.show.html import environment

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
SEEN = "U+202EgnorwU+202C"  # what is left of the direction marks
HOSTILE = f"{START}{IMAGE}{TURNED} Where is Oslo?"
WALK = 60  # steps
# In one go: what was counted may be gone when it is clicked.
CLICK = """([what, share]) => {
  const places = [...document.querySelectorAll(what)];
  if (places.length) places[Math.floor(share * places.length)].click();
}"""


def harmed(tab, heard: Heard) -> list[str]:
    """Everything that text has done which text may not do."""
    found = [f"dialog {said}" for said in heard.dialogs]
    found += [f"{n} images" for n in [tab.locator("#panels img").count()] if n]
    raw = tab.evaluate("/[\\u202a-\\u202e]/.test(document.getElementById('panels').innerText)")
    return found + (["hidden characters"] if raw else [])


def test_hostile_text_is_shown_as_text(browser, address) -> None:
    tab, heard = visit(browser, address)
    ask(tab, HOSTILE)
    tab.locator("#subject").locator("input, textarea").fill(f"{IMAGE}{TURNED}")
    tab.get_by_label(steps.PATCH).check()
    tab.locator("#beside").click()
    tab.locator("#second svg.beliefs").wait_for()
    assert tab.locator("#first .asked").inner_text() == f"{START}{IMAGE}{SEEN} Where is Oslo?"
    answer = tab.locator("#first .said b").inner_text()
    assert IMAGE in answer and SEEN in answer
    tokens = tab.locator("#first .tokens .token").all_inner_texts()
    assert START in tokens and IMAGE in tokens and SEEN in tokens  # a token each
    assert f"another subject: {IMAGE}{SEEN}" in tab.locator("#first .key").inner_text()
    tab.wait_for_timeout(300)
    assert harmed(tab, heard) == []
    assert heard.errors == [] and elsewhere(heard, address) == []
    tab.context.close()


def test_the_check_fails_where_text_becomes_markup(browser, address, monkeypatch) -> None:
    """The same page with the lock open: text written into the panel as it is."""
    monkeypatch.setitem(environment().filters, "visible", str)
    tab, heard = visit(browser, address)
    tab.locator("#question textarea").fill(HOSTILE)
    tab.locator("#ask").click()
    tab.locator("#first svg.beliefs").wait_for()
    tab.wait_for_timeout(300)
    found = harmed(tab, heard)
    assert "dialog 1" in found and "hidden characters" in found
    assert any("images" in what for what in found)
    tab.context.close()


def _step(tab, rng: random.Random) -> None:
    """One thing that a visitor might do, without waiting for what it leads to."""
    kind = rng.choice(["question", "subject", "token", "button", "switch", "key", "heads"])
    if kind in ("question", "subject", "heads"):
        texts = {"question": [OSLO, HOSTILE, "", "?"], "subject": ["Rome", IMAGE, ""],
                 "heads": ["", "2.1", "x"]}  # fmt: skip
        tab.locator(f"#{kind}").locator("input, textarea").first.fill(rng.choice(texts[kind]))
        tab.keyboard.press("Enter")
    elif kind == "key":
        tab.keyboard.press(rng.choice(["Tab", "Enter", "ArrowRight", "Space"]))
    else:
        what = {"token": "button.token", "button": "#ask, #beside, #again",
                "switch": "#switches input, #mode input"}  # fmt: skip
        tab.evaluate(CLICK, [what[kind], rng.random()])
    tab.wait_for_timeout(rng.choice([0, 50, 300]))
