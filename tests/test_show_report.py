"""The report: one file, complete, every number once, and no text in it can become markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from kit.show_fixture import add_claims, make_run

from anchorscope.run_folder.table_columns import EVIDENCE, TEXT
from anchorscope.run_folder.view import RunView, records, where
from anchorscope.show import write_report
from anchorscope.show.html import island, number, percent, short, span
from anchorscope.show.report import (
    agreeing,
    draw,
    facts,
    findings,
    kinds,
    marked,
)
from anchorscope.show.report import page as html

SECTIONS = [
    "ΔP, layer by layer",
    "Two pathways, or something else?",
    "Which claims hold",
    "Answers",
    "How well the probes read each layer",
    "Controls",
    "Do span finders agree?",
    "The other evidence",
    "Examples",
    "Repeat this run",
]


class Page(HTMLParser):
    """Counts tags and gathers the text of scripts and marks."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.scripts: list[tuple[dict, str]] = []
        self.marks: list[tuple[str, str]] = []
        self._open: tuple[str, dict] | None = None
        self.words = ""
        self.titles: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.loads += [v for k, v in attrs if k in ("src", "href") and v]
        self._open = (tag, dict(attrs))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag) -> None:
        self._open = None

    def handle_data(self, data) -> None:
        tag, attrs = self._open or ("", {})
        if tag == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif tag == "mark":
            self.marks.append((attrs.get("class", ""), data))
        elif tag == "h2":
            self.titles.append(data)
        if tag not in ("script", "style"):
            self.words += data

    def charts(self) -> dict[str, Any]:
        return {a["id"]: json.loads(t) for a, t in self.scripts if a.get("type")}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return add_claims(make_run(tmp_path_factory.mktemp("r") / "run", layers=6, n=80))


@pytest.fixture(scope="module")
def page(run: RunView) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


def test_the_file_is_alone_and_runs_its_own_script_only(run: RunView, page: Page) -> None:
    outside = [place for place in page.loads if not place.startswith("#")]
    assert outside == ["data:,", "view.html"]  # no icon is fetched; the other is a link
    assert not list(run.path.glob(".*"))
    assert len([text for attrs, text in page.scripts if "type" not in attrs]) == 1
    assert (run.path / "report.html").stat().st_size < 500_000
    text = (run.path / "report.html").read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None and "default-src 'none'" in policy[1]
    assert policy[1].count("'sha256-") == 1 and "script-src 'unsafe-inline'" not in policy[1]


def test_sections_are_in_order_and_the_contents_lead_to_them(page: Page, tmp_path: Path) -> None:
    assert page.titles == [title for title in SECTIONS if title != "The other evidence"]
    run = add_claims(make_run(tmp_path / "run", layers=6, n=80))
    windows = run.layers.assign(layers="single")[list(EVIDENCE["windows"])]
    windows.to_csv(run.path / "tables" / "windows.csv", index=False)
    text = write_report(RunView.open(run.path)).read_text(encoding="utf-8")
    assert Page(text).titles == SECTIONS
    links = [place[1:] for place in Page(text).loads if place.startswith("#")]
    assert len([link for link in links if not link.startswith("finding-")]) == len(SECTIONS)
    assert any(link.startswith("finding-") for link in links)
    assert all(f'id="{link}"' in text for link in links)


def test_the_gap_of_a_finding_is_on_the_page_once(run: RunView) -> None:
    rows = {"gap": -12.34, "gap_low": -23.4, "gap_high": -3.21}
    other = RunView(run.path, run.info)
    other.__dict__["findings"] = run.findings.assign(**rows)
    same = run.claims["claim"] == "two-pathways"
    other.__dict__["claims"] = run.claims.assign(
        strict_value=run.claims["strict_value"].mask(same, -12.34)
    )
    words = Page(write_report(other).read_text(encoding="utf-8")).words
    assert "the gap of Q and A is −12.3 (−23.4 to −3.2) points" in _line(words)
    assert words.count("−12.3") == len(run.findings)  # once for each dataset


def test_the_page_says_what_was_run_and_how(run: RunView, page: Page) -> None:
    for words in ("Paper mode is circular.", "anchorscope run --data", "2.13.0", "abc1234"):
        assert words in page.words
    assert "31.2" in page.words and "12,345" in page.words
    for row in records(run.findings):
        assert row["why"][1:] in page.words


def test_the_charts_hold_the_tables_numbers(run: RunView, page: Page) -> None:
    assert set(page.charts()) == {"delta-p-data", "probes-data", "controls-data"}
    views = page.charts()["delta-p-data"]["views"]
    assert [view["label"] for view in views] == ["Strict mode", "Paper mode"]
    for mode, view in zip(("strict", "paper"), views, strict=True):
        (line,) = [each for each in view["curves"] if each["label"] == "Q-Anchored (PopQA)"]
        rows = where(run.layers, dataset="popqa", mode=mode, pathway="Q")
        assert (line["value"], line["n"]) == (rows["delta_p"].tolist(), rows["n"].tolist())
        assert line["low"] == rows["delta_p_low"].tolist() and line["color"] == "#d55e00"


def test_counts_are_those_of_the_samples(run: RunView, page: Page) -> None:
    samples = run.samples.query("dataset == 'atlas'")
    found = kinds(samples)
    no_span = samples["exact_answer"].map(len).eq(0)
    assert (found[no_span & (samples["verdict"] != "abstain")] == "unusable").all()
    assert found.value_counts().sum() == len(samples)
    assert "left out before asking: 3 (duplicate)" in page.words
    assert "given (64), rules (16)" in page.words


def test_the_models_own_answer_is_shown_where_it_was_read(run: RunView, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", layers=3, n=60)
    row = {"model": "m", "dataset": "atlas", "pass": "knockout", "predicted": "all", "layer": 1}
    numbers = {"delta_log_p": -6.125, "delta_log_p_low": -7, "delta_log_p_high": -5, "n": 9}
    rows = [row | numbers | {"pathway": p, "rank": 1234.0, "delta_log_p_first": -1} for p in "QA"]
    pd.DataFrame(rows).to_csv(folder / "tables" / "output.csv", index=False)
    words = Page(write_report(add_claims(folder)).read_text(encoding="utf-8")).words
    assert "−6.1 (−7.0 to −5.0)" in words and "1,234" in words


def test_examples_mark_the_exact_tokens_of_both_pathways(run: RunView, page: Page) -> None:
    rows = agreeing(run, "atlas", int(run.findings["layer"].iloc[0]))
    subjects = run.samples.set_index("id")["subjects"]
    for row in draw(records(rows.query("pathway == 'Q'")), 3):
        assert ("question", subjects[row["id"]][0]) in page.marks
    assert ("answer", "France") in page.marks
    parts = [("a", False), ("bc", True), ("d", True), ("ef", False)]
    assert marked("abcdef", [(1, 3), (2, 4)]) == parts
    assert marked("<b>", [(0, 99)]) == [("<b>", True)]
    assert marked("abc", [(5, 9)]) == [("abc", False)]


def test_the_list_of_files_names_results_only(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", layers=2, n=20)
    (folder / "markers").mkdir(exist_ok=True)
    (folder / "markers" / "samples.parquet.json").write_text("{}")
    (folder / "owner.json").write_text("{}")
    rows = dict(facts(RunView.open(folder))["Files in this folder"].rows)
    assert not [name for name in rows if name.startswith(("markers", "owner"))]
    tables = sorted((folder / "tables").iterdir())
    assert {"run.json", f"tables/ ({len(tables)} files)"} <= set(rows)


def test_a_run_without_groups_still_has_a_report(tmp_path: Path) -> None:
    run = add_claims(make_run(tmp_path / "run", layers=2, n=12, empty=("atlas", "popqa")))
    run.controls[["flip_rate_low", "flip_rate_high"]] = float("nan")
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert "No sample that both modes place here." in page.words
    assert "Few samples (Q 0 in paper mode" in page.words
    assert "NaN" not in json.dumps(page.charts())
    assert "nan" not in page.words.replace("finance", "").split()
    assert "no number" not in page.words and "not measured to" not in page.words


def test_a_block_of_json_cannot_be_closed_by_its_text() -> None:
    block = island("x", {"a": ["</script>", float("nan"), "&\u2028"]})
    inside = block[block.index(">") + 1 : block.rindex("<")]
    assert "<" not in inside
    assert json.loads(inside) == {"a": ["</script>", None, "&\u2028"]}


def test_a_question_only_probe_is_named_where_there_is_one(page: Page, tmp_path: Path) -> None:
    words = "Dotted: chance. Dashed: a probe at the last question token, before any answer. Where"
    assert words not in page.words
    assert "Dotted: chance. Where a probe is at chance" in page.words
    run = add_claims(make_run(tmp_path / "run", layers=6, n=80))
    table = run.probes.rename(columns={"n_test": "n"})[list(EVIDENCE["question_probe"])]
    table.to_csv(run.path / "tables" / "question_probe.csv", index=False)
    assert words in Page(write_report(RunView.open(run.path)).read_text(encoding="utf-8")).words


def _line(words: str) -> str:
    return " ".join(words.split())


def _shown(run: RunView, **values: float | str) -> str:
    """The part of the page about the first dataset's finding, with these columns for it."""
    other = RunView(run.path, run.info)
    table = run.findings.astype({name: object for name in values if name in TEXT})
    table.loc[0, list(values)] = list(values.values())
    other.__dict__["findings"] = table
    text = html(other)
    return _line(Page(text[text.index('id="findings"') :].split("<h3>")[1]).words)


def test_an_effect_names_what_its_test_is_of(run: RunView) -> None:
    """Over all samples a loss of one predicted class and a gain of the other cancel."""
    spans = {
        "effect": (0.1, -2.0, 2.2),
        "effect_logit": (0.02, -0.3, 0.34),
        "effect_flips": (0.03, -0.01, 0.07),
        "effect_logit_right": (-0.81, -1.04, -0.58),
        "effect_logit_wrong": (0.72, 0.44, 0.99),
    }
    columns = {
        f"{name}{end}": value
        for name, values in spans.items()
        for end, value in zip(("", "_low", "_high"), values, strict=True)
    }
    text = _shown(run, effect_p=1e-5, **columns)
    assert "samples predicted right −0.81 (−1.04 to −0.58) logits; " in text
    assert "samples predicted wrong 0.72 (0.44 to 0.99) logits; 0.03 (−0.01 to 0.07) of" in text
    assert "within either predicted class, or more flips: p < 0.001. The mean over all" in text
    assert "not tested: 0.1 (−2.0 to 2.2) points, 0.02 (−0.30 to 0.34) logits" in text


def test_what_was_not_measured_says_why(run: RunView) -> None:
    none = float("nan")
    text = _shown(
        run, same_gap=none, question_p=none, exact_share=none, content_share=none, retest=none,
        retest_p=none, kappa=none, retest_kappa=none, cells=none, untested="retest",
    )  # fmt: skip
    assert "(with both from one probe it was not measured: a group is empty; the clean" in text
    assert "not measured: this run has no pass that hides the whole question" in text
    assert "retest not measured: too few samples were read again" in text
    assert "(κ) not measured: there are no two humps to agree on" in text
    assert "5. What explains it?no two groups to explain" in text
    assert "Not tested, for lack of the pass: retest." in text


def test_what_weakens_a_finding_is_said_before_it(run: RunView, tmp_path: Path) -> None:
    text = _shown(run, finding="uniform", power_half=0.5)
    assert text.index("This run cannot tell two groups from one.") < text.index("Read over")
    assert "found two pathways in 50 % of cases" in text
    few = add_claims(make_run(tmp_path / "run", layers=4, n=16, signal=0.0))
    text = " ".join(findings(few)[0]["cautions"])
    assert "not shown to be better than chance (AUROC 0." in text and "Few samples" in text


def test_numbers_are_written_honestly() -> None:
    assert [number(-0.04), number(-12.34), number(float("nan"))] == ["0.0", "−12.3", "not measured"]
    shares = (0.001, -0.058, 0.0, 0.999, 1.033, 1)
    assert list(map(percent, shares)) == ["0.1 %", "−6 %", "0 %", "99.9 %", "103 %", "100 %"]
    assert [short(-17.41), short(2.832), short(float("nan"))] == ["−17.4", "2.83", ""]
    assert span(1.0, float("nan")) == "no interval"
