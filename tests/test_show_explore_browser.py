"""The page of samples in a real browser: figure, samples, tokens, and back by the address."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from kit.browser import CHROMIUM, open_page, rows_of
from kit.explore_fixture import make_tokens
from kit.show_fixture import make_run
from scipy.special import expit

from anchorscope.run_folder.view import RunView, where
from anchorscope.show.view_page import write_view

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
LAYER = 5


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    folder = make_run(tmp_path_factory.mktemp("one") / "run", layers=8, n=80)
    return RunView.open(make_tokens(folder))


@pytest.fixture(scope="module")
def address(run: RunView) -> str:
    return write_view([run]).as_uri()


@pytest.fixture
def tab(browser, address: str):
    opened, heard = open_page(browser, f"{address}#layer={LAYER}")
    yield opened
    opened.close()
    assert heard.errors == []
    assert len(heard.requests) == 1  # the page itself


def count(tab) -> int:
    return int(tab.locator("#count").inner_text().split(" of ")[0])


def test_filters_keep_what_the_tables_of_the_run_say(tab, run: RunView) -> None:
    at = where(run.pathways, layer=LAYER)
    strict, paper = (where(at, mode=mode).set_index("id") for mode in ("strict", "paper"))
    assert count(tab) == len(run.samples)
    tab.locator("#by-strict").select_option("Q")
    q = set(strict.index[strict["pathway"] == "Q"])
    assert count(tab) == len(q)
    tab.locator("#by-predicted").select_option("wrong")
    q &= set(strict.index[strict["prediction"] == 1])
    assert count(tab) == len(q)
    tab.locator("#by-paper").select_option("A")
    q &= set(paper.index[paper["pathway"] == "A"])
    tab.locator("#by-verdict").select_option("right")
    q &= set(run.samples["id"][run.samples["verdict"] == "right"])
    assert count(tab) == len(q)
    shown = tab.evaluate(
        "[...document.querySelectorAll('#table tr[data-id]')].map(r => r.dataset.id)"
    )
    assert set(shown) == q
    tab.get_by_role("button", name="Clear all").click()
    assert count(tab) == len(run.samples)


def test_a_drag_in_the_scatter_keeps_the_samples_inside(tab, run: RunView) -> None:
    canvas = tab.locator("canvas").first.bounding_box()
    tab.mouse.move(canvas["x"] + 60, canvas["y"] + 20)
    tab.mouse.down()
    tab.mouse.move(canvas["x"] + canvas["width"] / 2, canvas["y"] + 200, steps=4)
    tab.mouse.up()
    words = dict(pair.split("=") for pair in tab.url.split("#")[1].split("&"))
    number, a, b, c, d = (float(word) for word in words["points"].split("%2C"))
    rows = where(run.pathways, layer=LAYER, mode="strict")
    inside = rows["logit_clean"].between(a, b) & rows["logit_knockout"].between(c, d)
    assert number == 0 and 0 < inside.sum() < len(rows)
    assert count(tab) == inside.sum()
    tab.locator("#chips .chip").first.click()
    assert count(tab) == len(run.samples)


def test_a_drag_in_the_curves_keeps_samples_by_their_own_effect(tab, run: RunView) -> None:
    chart = tab.locator("svg.chart").first.bounding_box()
    tab.mouse.move(chart["x"] + chart["width"] * 0.4, chart["y"] + 150)
    tab.mouse.down()
    tab.mouse.move(chart["x"] + chart["width"] * 0.7, chart["y"] + 260, steps=4)
    tab.mouse.up()
    words = dict(pair.split("=") for pair in tab.url.split("#")[1].split("&"))
    _, first, last, low, high = (float(word) for word in words["effect"].split("%2C"))
    rows = where(run.pathways, mode="strict")
    rows = rows[rows["layer"].between(first, last)]
    sign = 2 * rows["prediction"] - 1
    clean, cut = (
        1 / (1 + 2.718281828459045 ** (-sign * rows[f"logit_{of}"])) for of in ("clean", "knockout")
    )
    mean = (100 * (cut - clean)).groupby(rows["id"]).mean()
    assert count(tab) == mean.between(low, high).sum() > 0


def test_from_filter_to_sample_to_tokens_and_back_by_the_address(browser, tab, address) -> None:
    tab.locator("#search").fill("Kyoto")
    tab.locator("#by-verdict").select_option("wrong")
    few = count(tab)
    tab.locator("#table tbody tr").nth(1).click()
    assert tab.locator("#sample .asked").inner_text() == "Which country is Kyoto in?"
    cut = tab.locator("#sample .tokens > .token.exact-question.cut")
    assert "".join(cut.all_inner_texts()) == "Kyoto"
    assert (
        "".join(tab.locator("#sample .tokens > .token.exact-answer").all_inner_texts()) == "France"
    )
    assert tab.locator("path.belief").count() == 2  # clean and knocked out; nothing else is stored
    link, html = tab.url, tab.locator("#all").evaluate("node => node.innerHTML")
    other, heard = open_page(browser, link)
    assert other.locator("#all").evaluate("node => node.innerHTML") == html
    other.close()
    assert heard.errors == []
    tab.go_back()
    assert tab.locator("#sample .asked").count() == 0
    assert count(tab) == few
    tab.go_back()
    assert tab.locator("#by-verdict").input_value() == ""
    tab.go_forward()
    tab.go_forward()
    assert tab.url == link
    assert tab.locator("#sample .asked").count() == 1


def heights(tab, what: str) -> np.ndarray:
    """The values that a path of the belief chart runs through, from its y coordinates."""
    path = tab.locator(f"#sample path{what}").get_attribute("d")
    assert path.count("M") == 1  # without a gap
    y = np.array([float(point.split(",")[1]) for point in path.strip("MZ").split("L")])
    ends = tab.locator("#sample svg.chart line").evaluate_all(
        "lines => lines.slice(0, 6).map(line => Number(line.getAttribute('y1')))"
    )  # at P(wrong) 0, 0.2, ... and 1
    return (y - ends[0]) / (ends[-1] - ends[0])


def test_the_belief_and_its_bands_are_those_of_the_table(browser, tmp_path: Path) -> None:
    run = RunView.open(make_run(tmp_path / "run", layers=6, n=400, datasets={"atlas": "Atlas"}))
    table = where(run.pathways, mode="strict")
    id = table["id"].iloc[0]
    tab, _ = open_page(browser, f"{write_view([run]).as_uri()}#open={id}")
    mine = where(table, id=id).sort_values("layer")
    for pass_, column in (("clean", "logit_clean"), ("knockout", "logit_knockout")):
        shown = heights(tab, f'.belief[data-pass="{pass_}"]')
        assert shown == pytest.approx(expit(mine[column].to_numpy()), abs=0.003)
    for group in ("Q", "A"):
        like = table.merge(mine[["layer", "prediction"]])
        cut = expit(where(like, pathway=group).set_index("layer")["logit_knockout"])
        low, high = (cut.groupby("layer").quantile(share).to_numpy() for share in (0.25, 0.75))
        shown = heights(tab, f".band.{group}")
        assert shown == pytest.approx(np.concatenate([low, high[::-1]]), abs=0.003)
    tab.close()


def test_the_slider_moves_the_table_and_the_keyboard_the_rows(tab, run: RunView) -> None:
    tab.locator("#layer-0").focus()
    tab.keyboard.press("ArrowRight")
    assert "layer=6" in tab.url
    tab.locator("#table tbody tr").first.focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    second = run.samples["id"].iloc[1]
    assert tab.locator("#sample dd").first.inner_text() == second
    rows = where(run.pathways, layer=6, mode="strict").set_index("id")
    cell = tab.locator("#table tbody tr").nth(1).locator(".is-strict").inner_text()
    assert cell == (rows["pathway"].get(second) or "–")


@pytest.mark.parametrize("sort", ["delta_p", "-popularity"])
def test_the_csv_is_the_table(browser, address, tmp_path: Path, sort: str) -> None:
    tab, _ = open_page(browser, f"{address}#layer={LAYER}&strict=A&sort={sort}")
    with tab.expect_download() as got:
        tab.locator("#csv").click()
    got.value.save_as(tmp_path / "samples.csv")
    with (tmp_path / "samples.csv").open(encoding="utf-8-sig", newline="") as file:
        table = list(csv.DictReader(file))
    shown = rows_of(tab)
    assert len(table) == len(shown) == count(tab) > 50  # more than a page
    for written, read in zip(table, shown, strict=True):
        names = [name for name in written if name != "id"]
        for name, cell in zip(names, read, strict=True):
            if name == "delta_p":
                assert float(cell.replace("−", "-")) == pytest.approx(
                    float(written[name]), abs=0.051
                )
            elif name != "popularity":
                assert cell == (written[name] or "–")
    if sort.endswith("popularity"):
        numbers = [float(row["popularity"]) for row in table]
        assert numbers == sorted(numbers, reverse=True)
    tab.close()


def test_two_runs_stand_side_by_side_joined_by_question(browser, run: RunView, tmp_path) -> None:
    other = RunView.open(make_run(tmp_path / "two", layers=12, n=70, seed=5, model="Larger"))
    tab, heard = open_page(browser, write_view([run, other], tmp_path / "two.html").as_uri())
    one, two = (of.samples.set_index("id")["verdict"] for of in (run, other))
    shared = one.index.intersection(two.index)
    assert count(tab) == len(shared) == 140
    tab.locator('[data-cell="verdict right wrong"]').click()
    differ = (one[shared] == "right") & (two[shared] == "wrong")
    assert count(tab) == differ.sum() > 0
    tab.locator("#layer-0").fill("8")
    assert tab.locator("#layer-1").input_value() == "12"  # the same depth
    tab.locator("#table tbody tr").first.click()
    heads = tab.locator("#sample h3").all_inner_texts()
    assert [head[0] for head in heads] == ["1", "2"] and heads[1].endswith("Larger")
    assert tab.locator("#sample .said .verdict").all_inner_texts() == ["right", "wrong"]
    assert heard.errors == []
    assert heard.outside() == []
    tab.close()


def test_the_page_fits_and_follows_the_scheme(browser, address, run) -> None:
    link = f"{address}#open={run.samples['id'].iloc[0]}"
    for width, scheme in ((400, "dark"), (1400, "light")):
        size = {"width": width, "height": 900}
        tab, heard = open_page(browser, link, viewport=size, color_scheme=scheme)
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(20, 23, 29)") == (scheme == "dark")
        assert heard.errors == []
        tab.close()
