"""The report is one file, complete, and no text in it can become markup."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from kit.show_fixture import make_run
from kit.strict_fixture import add_strict

from anchorscope.run_folder.table_columns import EVIDENCE, FINDINGS_EFFECT, TEXT
from anchorscope.run_folder.view import RunView, records, where
from anchorscope.show import write_report
from anchorscope.show.html import island
from anchorscope.show.report.findings import findings, five_answers
from anchorscope.show.report.headline import headline, headlines, kinds
from anchorscope.show.report.sections import agreeing, draw, facts, marked
from anchorscope.show.report.words import opening

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'"


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
        found = dict(attrs)
        self.tags.append(tag)
        self.loads += [v for k, v in attrs if k in ("src", "href") and v]
        self._open = (tag, found)
        if tag == "script":
            self.scripts.append((found, ""))

    def handle_endtag(self, tag) -> None:
        self._open = None

    def handle_data(self, data) -> None:
        if self._open and self._open[0] == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif self._open and self._open[0] == "mark":
            self.marks.append((self._open[1].get("class", ""), data))
        elif self._open and self._open[0] == "h2":
            self.titles.append(data)
        if not (self._open and self._open[0] in ("script", "style")):
            self.words += data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return RunView.open(make_run(tmp_path_factory.mktemp("r") / "run", layers=6, n=80))


@pytest.fixture(scope="module")
def page(run: RunView) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


def test_the_file_is_alone_and_whole(run: RunView, page: Page) -> None:
    outside = [place for place in page.loads if not place.startswith("#")]
    assert outside == ["data:,", "view.html"]  # no icon is fetched; the other is a link
    assert not list(run.path.glob(".*"))
    programs = [text for attrs, text in page.scripts if "type" not in attrs]
    assert len(programs) == 1
    assert (run.path / "report.html").stat().st_size < 500_000


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


def test_the_picture_comes_first_and_the_rest_in_order(page: Page, tmp_path: Path) -> None:
    early = ["ΔP, layer by layer", "What it means", *SECTIONS[3:7], *SECTIONS[8:]]
    assert page.titles == early  # a run without strict mode's tables and without evidence
    run = add_strict(make_run(tmp_path / "run", layers=6, n=80))
    windows = run.layers.assign(layers="single")[list(EVIDENCE["windows"])]
    windows.to_csv(run.path / "tables" / "windows.csv", index=False)
    text = write_report(RunView.open(run.path)).read_text(encoding="utf-8")
    assert Page(text).titles == SECTIONS
    places = [text.index(said) for said in ('id="delta-p"', "answered 160 questions", "<h3>Atlas")]
    assert places == sorted(places)


def test_the_contents_lead_to_every_section_and_names_to_their_meaning(tmp_path: Path) -> None:
    run = add_strict(make_run(tmp_path / "run", layers=6, n=80))
    text = write_report(run).read_text(encoding="utf-8")
    links = [place[1:] for place in Page(text).loads if place.startswith("#")]
    assert len([link for link in links if not link.startswith("finding-")]) == len(SECTIONS) - 1
    assert any(link.startswith("finding-") for link in links)
    assert all(f'id="{link}"' in text for link in links)


def test_an_unknown_interval_is_named_once(tmp_path: Path) -> None:
    run = RunView.open(make_run(tmp_path / "run", layers=2, n=12, empty=("atlas", "popqa")))
    run.controls[["flip_rate_low", "flip_rate_high"]] = float("nan")
    text = write_report(run).read_text(encoding="utf-8")
    assert "no number" not in text and "not measured to" not in text


def test_three_sentences_open_the_report(tmp_path: Path) -> None:
    run = add_strict(make_run(tmp_path / "run", layers=6, n=80))
    what, paper, strict = opening(run, headlines(run))
    usable = {}
    for name in ("atlas", "popqa"):
        rows = run.samples[run.samples["dataset"] == name].to_dict("records")
        rows = [r for r in rows if r["verdict"] != "abstain" and len(r["exact_answer"])]
        usable[name] = len(rows), sum(r["verdict"] == "right" for r in rows)
    assert what == (
        "SmolLM2-135M-Instruct (6 layers) answered 160 questions; probes read the answers that are "
        "right or wrong, n = {} on Atlas ({} right) and n = {} on PopQA ({} right).".format(
            *usable["atlas"], *usable["popqa"]
        )
    )
    wide = run.layers.query("mode == 'paper'").pivot_table(
        index=["dataset", "layer"], columns="pathway", values="delta_p"
    )
    gap = wide["Q"] - wide["A"]
    layers = run.findings.set_index("dataset")["layer"].to_dict()  # not where the gap is widest
    layers = [layers[d] for d in ("atlas", "popqa")]
    said = [
        f"{gap[d][k]:.1f}".replace("-", "−")
        for d, k in zip(("atlas", "popqa"), layers, strict=True)
    ]
    assert paper.endswith(
        f"shows a gap from A to Q of {said[0]} points on Atlas (layer {layers[0]}) "
        f"and {said[1]} on PopQA (layer {layers[1]})."
    )
    assert strict == (
        "Strict mode, where another probe measures them, finds a difference of degree, not two "
        "groups on Atlas; finds two pathways on PopQA."
    )


def test_a_run_without_two_groups_opens_with_that(tmp_path: Path) -> None:
    run = RunView.open(make_run(tmp_path / "run", layers=3, n=30, empty=("atlas",)))
    _, paper, strict = opening(run, headlines(run))
    assert paper.endswith("and no two groups on Atlas.")
    assert " points on PopQA (layer " in paper and " points on PopQA (layer " in strict


def test_the_page_says_what_was_run_and_how(page: Page) -> None:
    for said in ("Paper mode is circular.", "anchorscope run --data", "2.13.0", "abc1234"):
        assert said in page.words
    assert "31.2" in page.words
    assert "12,345" in page.words


def test_the_charts_hold_the_tables_numbers(run: RunView, page: Page) -> None:
    blocks = {a["id"]: json.loads(t) for a, t in page.scripts if a.get("type")}
    assert set(blocks) == {"delta-p-data", "probes-data", "controls-data"}
    views = blocks["delta-p-data"]["views"]
    assert [view["label"] for view in views] == ["Strict mode", "Paper mode"]
    for mode, view in zip(("strict", "paper"), views, strict=True):
        (line,) = [each for each in view["curves"] if each["label"] == "Q-Anchored (PopQA)"]
        rows = where(run.layers, dataset="popqa", mode=mode, pathway="Q")
        assert (line["value"], line["n"]) == (rows["delta_p"].tolist(), rows["n"].tolist())
        assert line["low"] == rows["delta_p_low"].tolist()
        assert line["color"] == "#d55e00"


def test_counts_are_those_of_the_samples(run: RunView, page: Page) -> None:
    samples = run.samples.query("dataset == 'atlas'")
    found = kinds(samples)
    no_span = samples["exact_answer"].map(len).eq(0)
    assert (found[no_span & (samples["verdict"] != "abstain")] == "unusable").all()
    assert found.value_counts().sum() == len(samples)
    assert "left out before asking: 3 (duplicate)" in page.words
    assert "given (64), rules (16)" in page.words


def test_examples_mark_the_exact_tokens_of_both_pathways(run: RunView, page: Page) -> None:
    head = headline(run, "atlas", "Atlas")
    assert head.layer is not None
    rows = agreeing(run, "atlas", head.layer)
    chosen = draw(records(rows.query("pathway == 'Q'")), 3)
    subjects = run.samples.set_index("id")["subjects"]
    for row in chosen:
        assert ("question", subjects[row["id"]][0]) in page.marks
    assert ("answer", "France") in page.marks


def test_text_from_outside_stays_text(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path / "run",
        model=f"m{EVIL}",
        datasets={"x": f"T{EVIL}"},
        layers=4,
        n=60,
        question=f"Where is {{}}? {EVIL}",
        answer=f"France {EVIL}",
    )
    info = json.loads((folder / "run.json").read_text())
    info |= {"command": EVIL, "git": EVIL, "versions": {EVIL: EVIL}, "date": EVIL}
    info["config"] = {EVIL: EVIL}
    info["stages"] = {EVIL: {"seconds": 1.0}}
    info["datasets"][0]["dropped"] = {EVIL: 1}
    (folder / "run.json").write_text(json.dumps(info))
    run = RunView.open(folder)
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert "img" not in page.tags
    assert page.tags.count("script") == 1 + 3  # as many as without the evil text
    blocks = {a["id"]: json.loads(t) for a, t in page.scripts if a.get("type")}
    line = blocks["delta-p-data"]["views"][0]["curves"][-1]
    assert line["label"] == f"A-Anchored (T{EVIL})"
    assert page.words.count("alert(1)") > 10  # it is all there, as words


def test_scripts_run_only_by_their_hash(run: RunView) -> None:
    text = (run.path / "report.html").read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert policy[1].count("'sha256-") == 1
    assert "script-src 'unsafe-inline'" not in policy[1]


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
    run = RunView.open(make_run(tmp_path / "run", layers=2, n=12, empty=("atlas", "popqa")))
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert "the Q group is empty" in page.words
    assert "there is no example to show" in page.words
    assert "NaN" not in " ".join(text for attrs, text in page.scripts if attrs.get("type"))
    assert "nan" not in page.words.replace("finance", "").split()


def test_marks_are_merged_and_kept_in_bounds() -> None:
    parts = [("a", False), ("bc", True), ("d", True), ("ef", False)]
    assert marked("abcdef", [(1, 3), (2, 4)]) == parts
    assert marked("<b>", [(0, 99)]) == [("<b>", True)]
    assert marked("abc", [(5, 9)]) == [("abc", False)]


def test_a_block_of_json_cannot_be_closed_by_its_text() -> None:
    block = island("x", {"a": ["</script>", float("nan"), "&\u2028"]})
    inside = block[block.index(">") + 1 : block.rindex("<")]
    assert "<" not in inside
    assert json.loads(inside) == {"a": ["</script>", None, "&\u2028"]}


def test_dashed_curves_are_named_only_where_there_are_some(page: Page, tmp_path: Path) -> None:
    said = "Dotted: chance. Dashed: a probe at the last question token, before any answer. Where"
    assert said not in page.words
    assert "Dotted: chance. Where a probe is at chance" in page.words
    run = RunView.open(make_run(tmp_path / "run", layers=6, n=80))
    table = run.probes.rename(columns={"n_test": "n"})[list(EVIDENCE["question_probe"])]
    table.to_csv(run.path / "tables" / "question_probe.csv", index=False)
    again = Page(write_report(RunView.open(run.path)).read_text(encoding="utf-8"))
    assert said in again.words


def _answers(tmp_path: Path, **values: float | str) -> tuple[dict[str, Any], dict[str, str]]:
    """The first dataset's finding with these columns of findings.csv, and its five answers."""
    folder = make_run(tmp_path / "run", layers=6, n=80)
    run = add_strict(folder)
    run.findings.loc[0, list(values)] = list(values.values())
    found = findings(run, headlines(run))[0]
    return found, {str(question)[:1]: str(answer) for question, answer in found["answers"].rows}


def test_an_effect_names_what_its_test_is_of(tmp_path: Path) -> None:
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
        for name, span in spans.items()
        for end, value in zip(("", "_low", "_high"), span, strict=True)
    }
    _, answers = _answers(tmp_path, effect_p=1e-5, **columns)
    tested, untested = answers["1"].split(". ")
    assert "predicted right −0.81 (−1.04 to −0.58) logits" in tested
    assert "predicted wrong 0.72 (0.44 to 0.99) logits" in tested
    assert tested.endswith("within either predicted class, or more flips: p < 0.001")
    assert "not tested: 0.1 (−2.0 to 2.2) points, 0.02 (−0.30 to 0.34) logits" in untested


def test_an_effect_of_an_earlier_run_still_names_its_test(tmp_path: Path) -> None:
    run = add_strict(make_run(tmp_path / "run", layers=6, n=80))
    row = records(run.findings.drop(columns=list(FINDINGS_EFFECT)))[0]
    answer = str(five_answers(row, "points").rows[0][1])
    assert "predicted right" not in answer and "within either predicted class" in answer


def test_what_was_not_measured_says_why(tmp_path: Path) -> None:
    none = float("nan")
    found, answers = _answers(
        tmp_path,
        same_gap=none, question_p=none, exact_share=none, content_share=none, retest=none,
        retest_p=none, kappa=none, retest_kappa=none, cells=none,
    )  # fmt: skip
    assert "with both from one probe it was not measured: a group is empty" in found["summary"]
    assert answers["2"] == "not measured: this run has no pass that hides the whole question"
    assert answers["3"].endswith("retest not measured: too few samples were read again")
    assert answers["4"].endswith("(κ) not measured: there are no two humps to agree on")
    assert answers["5"] == "no two groups to explain"


def test_an_unmeasured_retest_of_groups_says_why(tmp_path: Path) -> None:
    _, answers = _answers(tmp_path, kappa=0.61, retest_kappa=float("nan"), finder=float("nan"))
    assert answers["4"].endswith("sides 0.61, retest not measured: too few samples of these humps "
                                 "were read again")  # fmt: skip
    assert answers["5"].endswith("hiding the whole question was not measured for these groups")


def test_every_number_of_a_finding_is_said_once(tmp_path: Path) -> None:
    run = add_strict(make_run(tmp_path / "run", layers=6, n=80))
    names = [n for n in run.findings if n not in ("layer", "sets", "n") and n not in TEXT]
    run.findings.loc[0, names] = [0.2111 + 0.0113 * place for place in range(len(names))]
    found = findings(run, headlines(run))[0]
    text = " ".join(
        [found["summary"], found["sentences"], *(str(r[1]) for r in found["answers"].rows)]
    )
    numbers = Counter(re.findall(r"−?\d+\.\d\d+|\d+ %", text))
    assert [number for number, times in numbers.items() if times > 1] == []
