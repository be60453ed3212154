"""The site: its figures show what the tables hold, its pages say for whom they are.

`make docs` builds it strictly and checks every link. What a browser does with it is tested by
`pytest -m slow tests/test_site.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "scripts" / "site"))

import site_check  # noqa: E402
import site_figures  # noqa: E402

PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page.parent != DOCS / "detection"]


def test_results_are_those_of_their_table_wherever_they_stand() -> None:
    for page in (ROOT / "README.md", DOCS / "results.md"):
        text = page.read_text(encoding="utf-8")
        (shown,) = re.findall(r"<!-- results -->\n(.+)\n<!-- end of results -->", text, re.DOTALL)
        assert shown == site_figures.results_table()


def test_the_sentence_of_the_result_counts_the_table() -> None:
    table = pd.read_csv(DOCS / "results.csv")
    found = table["finding"].value_counts()
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "two-pathways" not in found and (table["paper_gap"] < -10).all()
    all_, unknown = len(table), found["cannot-tell"]
    assert f"appears in {all_} of {all_} pairs" in readme
    assert f"found in none of them, and in {unknown} this run cannot tell" in readme


def test_the_figure_of_gaps_says_every_number_of_the_table() -> None:
    drawn = site_figures.gaps()
    for row in pd.read_csv(DOCS / "results.csv").to_dict("records"):
        assert (
            f"{row['model']} · {row['dataset']}: paper mode {row['paper_gap']}, strict mode "
            f"{row['strict_gap']} ({row['strict_low']} to {row['strict_high']}), {row['finding']}"
        ) in drawn
    marks = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    wanted = re.findall(r"^<!-- figure: (\w+) -->$", marks, re.MULTILINE)
    assert set(wanted) == set(site_figures.FIGURES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_for_whom_it_is(page: Path) -> None:
    title, _, rest = page.read_text(encoding="utf-8").partition("\n\n")
    assert title.startswith("# ")
    assert rest.startswith("*For ")


def test_the_link_checker_finds_what_is_wrong(tmp_path: Path) -> None:
    page = '<a href="b.html#there">1</a><a href="c.html">2</a><a href="b.html#not">3</a>'
    (tmp_path / "a.html").write_text(page + '<img src="https://elsewhere.org/x.png">')
    (tmp_path / "b.html").write_text('<h2 id="there">b</h2><script src="gone.js"></script>')
    (tmp_path / "s.css").write_text("p { background: url(//elsewhere.org/y.png) }")
    assert sorted(site_check.wrong_in(tmp_path)) == [
        "a.html loads https://elsewhere.org/x.png",
        "a.html: b.html#not has no such heading",
        "a.html: c.html is not there",
        "b.html: gone.js is not there",
        "s.css loads from another host",
    ]


@pytest.mark.slow  # about half a minute: pytest -m slow tests/test_site.py
def test_the_site_opened_as_files_draws_searches_and_asks_no_other_host(tmp_path, browser) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path]
    subprocess.run([str(word) for word in words], cwd=ROOT, check=True)
    assert site_check.wrong_in(tmp_path) == []
    page, elsewhere, errors = browser.new_page(), [], []
    page.on("request", lambda r: None if r.url.startswith("file:") else elsewhere.append(r.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    wanted = {
        "tutorial": "img[alt=png]",
        "results": ".figure svg",
        "what a finding means": "text=cannot-tell",
        "your model": "text=anchorscope run --model meta-llama/Llama-3.2-1B",
    }
    for link, seen in wanted.items():  # what a stranger looks for is one click away
        page.goto((tmp_path / "index.html").as_uri())
        with page.expect_navigation():
            page.locator("article").get_by_role("link", name=link, exact=True).first.click()
        page.locator(seen).first.wait_for(state="visible")
    # Opened as a file, the page makes its index once the field has the focus, and then says so. It
    # reads what is typed from key presses, which `fill` does not make.
    page.locator(".md-search__input").focus()
    page.get_by_text("Type to start searching").wait_for(state="attached", timeout=120_000)
    page.locator(".md-search__input").press_sequentially("knockout")
    page.locator(".md-search-result__item").first.wait_for(state="attached", timeout=120_000)
    assert (elsewhere, errors) == ([], [])
