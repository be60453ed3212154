"""What a reader may copy is run: the page on Python, and the examples in docstrings.

One run with the bundled model serves all of them.
"""

from __future__ import annotations

import doctest
import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from kit.evidence_fixture import without_pictures
from test_docs import ROOT, SHRINK, blocks

import anchorscope as anc
import anchorscope.simulate

PAGE = ROOT / "docs" / "python.md"
USED = {name: getattr(anc, name) for name in anc.__all__} | {
    "simulate": anchorscope.simulate.simulate
}
WITH_EXAMPLE = {
    "Config", "Detector", "LinearProbe", "Question", "RunView", "analyse", "check_model", "inspect",
    "load_model", "load_questions", "plot_delta_p", "run", "simulate", "study",
}  # fmt: skip


@pytest.fixture(scope="module")
def page(bundled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the page's blocks leave behind, run in one go from an empty folder, which stays."""
    text = PAGE.read_text(encoding="utf-8")
    code = "\n".join(blocks(PAGE, "python"))
    for long, short in SHRINK.findall(text):
        assert long in code, f"the page has no {long} to shrink"
        code = code.replace(long, short)
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("page"))
    made: dict[str, Any] = {}
    with without_pictures():
        exec(compile(code, PAGE.name, "exec"), made)
    yield made
    os.chdir(before)


def test_python_of_the_page_runs(page: dict[str, Any]) -> None:
    assert len(page["table"]) > 0
    assert Path("delta_p.png").stat().st_size > 10_000
    scored = page["scored"]
    assert scored.answer_entity in scored.answer
    assert 0 < scored.probability < 1
    assert scored.predicted_pathway in ("Q", "A")
    assert len(scored.belief) == page["model"].blocks
    assert page["detector"].name == "probe"


def examples() -> list[doctest.DocTest]:
    """The examples of the public names and of their methods."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name, value in USED.items() for test in finder.find(value, name)]
    return [test for test in found if test.examples]


def test_what_a_user_calls_has_an_example() -> None:
    names = {test.name for test in examples()}
    assert {name.partition(".")[0] for name in names} == WITH_EXAMPLE
    assert {"Detector.train", "Detector.score", "Detector.load", "RunView.open"} <= names


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_example_says_what_comes_out(
    example: doctest.DocTest, page: dict[str, Any], tiny_llama: anc.Model
) -> None:
    example.globs |= {name: page[name] for name in ("model", "detector")} | {"Path": Path}
    if example.name == "check_model":
        example.globs["model"] = tiny_llama  # the bundled one would be checked a second time
    printed: list[str] = []
    quick = without_pictures() if example.name == "simulate" else nullcontext()
    with quick:
        result = doctest.DocTestRunner().run(example, out=printed.append)
    assert result.failed == 0, re.sub(r"\n+", "\n", "".join(printed))
