"""Text of models and datasets on the page of samples: text, whatever it says, and no request."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.browser import CHROMIUM, harmed, open_page
from kit.explore_fixture import ANSWER, IMAGE, START, make_evil
from kit.show_fixture import SUBJECTS

from anchorscope.run_folder.view import RunView
from anchorscope.show.view_page import write_view

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
SEEN = "U+202EgnorwU+202C"  # what is left of the direction marks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return RunView.open(make_evil(tmp_path_factory.mktemp("evil") / "run"))


def test_hostile_text_is_shown_as_text(browser, run: RunView) -> None:
    sample = next(s for s in run.answers if s.answer.text)
    tab, heard = open_page(browser, f"{write_view([run]).as_uri()}#open={sample.id}")
    asked = tab.locator("#sample .asked").inner_text()
    assert asked.startswith(f"{START}{IMAGE}{SEEN}U+200BU+00A0U+0007 Where is ")
    assert sample.question.subjects[0] in SUBJECTS and sample.question.subjects[0] in asked
    assert tab.locator("#sample .said b").inner_text() == ANSWER.replace(
        "\u202e", "U+202E"
    ).replace("\u202c", "U+202C")
    assert tab.locator("h1").inner_text() == IMAGE
    tokens = "".join(tab.locator("#sample .tokens > .token").all_inner_texts())
    assert f"{START}{IMAGE}{SEEN}" in tokens
    chat = tab.locator("#sample .token", has_text=START).first
    assert chat.inner_text() == START  # one token, as the tokenizer has it
    assert tab.locator("#table tbody tr").first.inner_text().count(IMAGE) >= 2
    assert harmed(tab, heard) == []
    assert all(url.startswith("blob:") for url in heard.requests[1:])
    assert heard.errors == []
    tab.close()


def test_without_a_tokenizer_too(browser, tmp_path: Path) -> None:
    run = RunView.open(make_evil(tmp_path / "run", tokens=False))
    sample = next(s for s in run.answers if s.answer.text)
    tab, heard = open_page(browser, f"{write_view([run]).as_uri()}#open={sample.id}")
    assert tab.locator("#sample .token.exact-question").first.inner_text() == "".join(
        sample.question.subjects
    )
    assert tab.locator(".characters .token.exact-answer").inner_text() == "France"
    assert "Characters instead of tokens" in tab.locator("#sample .note").inner_text()
    assert harmed(tab, heard) == []
    tab.close()
