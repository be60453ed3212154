"""The site: its figures show what the tables hold, its pages say for whom they are.

`make docs` builds it strictly and checks every link. Whether a browser really asks no other host
is tested by `pytest -m slow tests/test_site.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "scripts" / "site"))

import site_check  # noqa: E402
import site_figures  # noqa: E402


def test_the_figure_of_gaps_has_the_numbers_of_the_study() -> None:
    study = pd.read_csv(DOCS / "replication" / "study.csv")
    band, paper, strict = site_figures.gaps().data
    assert list(paper.x) == study["paper_gap"].tolist()
    assert list(strict.x) == study["strict_gap"].tolist()
    assert [left + wide for left, wide in zip(band.base, band.x, strict=True)] == pytest.approx(
        study["null_high"].tolist()
    )


def test_the_figure_of_claims_has_a_cell_for_every_claim_with_its_decision() -> None:
    claims = pd.read_csv(DOCS / "replication" / "claims.csv")
    names = list(site_figures.DECISIONS)
    maps = [trace for trace in site_figures.claims().data if trace.type == "heatmap"]
    for mode, trace in zip(("paper", "strict"), maps, strict=True):
        cells = pd.Series(trace.z.ravel()).dropna().astype(int).map(names.__getitem__)
        assert cells.value_counts().to_dict() == claims[f"{mode}_verdict"].value_counts().to_dict()


def test_the_figures_of_worlds_and_detectors_have_every_row_of_their_tables() -> None:
    worlds = pd.read_csv(DOCS / "worlds.csv")
    paper, strict = site_figures.worlds().data
    assert list(strict.x) == pytest.approx((100 * worlds["strict_holds"]).tolist())
    assert len(set(paper.y)) == len(worlds)
    shown = {(trace.name, *pair) for trace in site_figures.detectors().data
             for pair in zip(trace.y, trace.x, strict=True)}  # fmt: skip
    for file in ("qwen2.5-coder-1.5b", "smollm2-135m"):
        table = pd.read_csv(DOCS / "detection" / f"{file}.csv").query("split == 'entity'")
        rows = zip(table["dataset"].map(site_figures.TITLES), table["title"], table["auroc"],
                   strict=True)  # fmt: skip
        assert set(rows) <= shown


def test_every_figure_that_a_page_asks_for_is_there_and_every_one_is_asked_for() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    assert set(re.findall(r"^<!-- figure: (\w+) -->$", pages, re.MULTILINE)) == set(
        site_figures.FIGURES
    )


ORDER = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
TABLES = DOCS / "detection"  # as `detect eval` writes them
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page.parent != TABLES
         and f" {page.relative_to(DOCS)}\n" in ORDER]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_that_has_its_place_says_for_whom_it_is(page: Path) -> None:
    assert len(PAGES) > 30
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, built strictly and served on this machine."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    subprocess.run([str(word) for word in words], cwd=ROOT, check=True)
    assert site_check.wrong_in(folder) == []
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow  # about a minute: pytest -m slow tests/test_site.py
def test_a_browser_asks_no_other_host_and_draws_the_figures(site: str, browser) -> None:
    page, elsewhere, errors = browser.new_page(), [], []

    def route(route) -> None:
        if route.request.url.startswith((site, "data:", "blob:")):
            route.continue_()
        else:
            elsewhere.append(route.request.url)
            route.abort()

    page.route("**/*", route)
    page.on("pageerror", lambda error: errors.append(str(error)))
    for name in ("index", "results", "replication", "tutorial", "api/runs", "help"):
        page.goto(f"{site}/{name}.html")
        page.wait_for_load_state("networkidle")
        marks = 4 * (name == "results") + 2 * (name == "replication")
        assert page.locator(".figure .main-svg").count() >= marks
        assert page.locator(".figure").count() == marks
    assert (elsewhere, errors) == ([], [])


@pytest.mark.slow  # with the test above
def test_what_a_stranger_looks_for_is_two_clicks_away(site: str, browser) -> None:
    page = browser.new_page()
    wanted = {
        "The published figure": 'img[src="figures/replication_qwen.png"]',
        "The replication": 'img[src="figures/replication_qwen_strict.png"]',
        "Run your own model": "text=anchorscope run --model meta-llama/Llama-3.2-1B",
        "What each finding and verdict means": "text=cannot-tell",
    }
    for link, seen in wanted.items():
        page.goto(f"{site}/index.html")
        page.locator(".cards").get_by_role("link", name=link).click()
        page.locator(seen).first.wait_for(state="visible")  # an image has no size before it is here
