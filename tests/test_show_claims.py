"""Claims with datasets as columns: every verdict of claims.csv in its cell, on paper and screen."""

from __future__ import annotations

import csv
import math
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from kit.show_fixture import add_claims, make_run
from test_claims import U
from test_claims import run as inputs_of
from typer.testing import CliRunner

from anchorscope.claims.table import claims_table
from anchorscope.cli import app
from anchorscope.errors import UserError
from anchorscope.run_folder.table_columns import CLAIMS
from anchorscope.run_folder.view import RunView
from anchorscope.show import write_report
from anchorscope.show.claims import (
    Column,
    grouped_claims,
    model_names,
    one_statement,
)

TITLES = {"atlas": "Atlas", "popqa": "PopQA", "one,two": "One, two"}
WIDTH = 100


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def shown(value: str, minus: str) -> str:
    """The number as it should be printed, from the file's own text."""
    if value == "" or math.isnan(float(value)):
        return ""
    text = f"{float(value):.{1 if abs(float(value)) >= 9.995 else 2}f}"
    return text.replace("-0.00", "0.00").replace("-", minus)


class Tables(HTMLParser):
    """The claims tables of a page: for each its header and its rows, a cell a list of words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[list[str]]]] = []
        self._inside = self._cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        if tag == "div":
            self._inside = dict(attrs).get("class") == "wide claims"
            self.tables += [[]] if self._inside else []
        elif self._inside and tag == "tr":
            self.tables[-1].append([])
        elif self._inside and tag in ("td", "th"):
            self.tables[-1][-1].append([])
            self._cell = True

    def handle_endtag(self, tag) -> None:
        self._inside = self._inside and tag != "table"
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data) -> None:
        if self._inside and self._cell:
            self.tables[-1][-1][-1].append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    folder = tmp_path_factory.mktemp("claims") / "run"
    return add_claims(make_run(folder, datasets=TITLES, layers=6, n=80))


def printed(*words: object, width: int = WIDTH) -> list[str]:
    """The lines that `anchorscope claims` prints in a terminal of that width."""
    result = CliRunner().invoke(app, ["claims", *map(str, words)], env={"COLUMNS": str(width)})
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_the_page_has_a_row_a_claim_and_every_verdict_in_its_cell(run: RunView) -> None:
    tables = Tables(write_report(run).read_text(encoding="utf-8")).tables
    seen: dict[tuple[str, str], list[str]] = {}
    names = []
    for head, *body in tables:
        titles = ["".join(cell) for cell in head[1:]]
        for (_, name), *cells in body:
            names.append(name.split(" · ")[0])
            seen |= {(names[-1], t): c for t, c in zip(titles, cells, strict=True) if c}
    expected = rows_of(run.path / "tables" / "claims.csv")
    assert len(names) == len(set(names)) == len({row["claim"] for row in expected})
    assert len(seen) == len(expected) > len(names)
    titles = TITLES | {",".join(TITLES): ", ".join(TITLES.values())}
    for row in expected:
        words = []
        for mode in ("paper", "strict"):
            number = shown(row[f"{mode}_value"], "−")
            if (mode, row["claim"]) == ("strict", "two-pathways"):
                number = ""  # the gap, which the finding has said
            words += [mode, row[f"{mode}_decision"], *([number] if number else [])]
        assert seen[row["claim"], titles[row["dataset"]]] == words


def test_two_lines_a_claim_and_every_decision_in_them(run: RunView) -> None:
    lines = printed(run.path, width=300)
    for row in rows_of(run.path / "tables" / "claims.csv"):
        (at,) = (n for n, line in enumerate(lines) if line.split()[:2] == [row["claim"], "paper"])
        for mode, line in zip(("paper", "strict"), lines[at : at + 2], strict=True):
            number = shown(row[f"{mode}_value"], "-")
            assert f"{mode} " in line and f"{row[f'{mode}_decision']} {number}".strip() in line
        assert row["statement"].split(" (")[0] in " ".join(lines)
    assert "finding:" in " ".join(lines[:4])
    assert max(map(len, printed(run.path))) <= WIDTH


def test_the_whole_table_is_written(run: RunView, tmp_path: Path) -> None:
    lines = printed(run.path, "--no-statements", "--out", tmp_path / "c.csv", width=300)
    assert lines[-1] == str(tmp_path / "c.csv")
    table = pd.read_csv(tmp_path / "c.csv", keep_default_na=False)
    assert tuple(table.columns) == CLAIMS
    same = pd.read_csv(run.path / "tables" / "claims.csv", keep_default_na=False)
    pd.testing.assert_frame_equal(table, same)


def test_every_row_of_two_models_is_in_one_cell() -> None:
    """With what is between models and what was read off the figure of each."""
    data = {"PopQA": 16, "NQ": 16}
    runs = [
        inputs_of(f"Llama-3.2-{name}", {d: depth * U.repeat(2)[:n] for d, n in data.items()},
                  size=size)
        for name, depth, size in (("1B", 1.0, 1.0), ("3B", 1.2, 9.0))
    ]  # fmt: skip
    table = claims_table(runs)
    single = [Column(r.model, d) for d in data for r in runs]
    blocks = grouped_claims(table, single)
    assert [b.kind for b in blocks] == ["dataset", "datasets", "models", "figure", "figure"]
    assert blocks[0].columns == tuple(single)
    assert {c.model for c in blocks[3].columns} == {"Llama-3.2-1B"}
    cells = [
        (row.claim, column.model, column.dataset, cell["strict_decision"], cell["finding"])
        for block in blocks
        for row in block.rows
        for column, cell in row.cells.items()
    ]
    names = ["claim", "model", "dataset", "strict_decision", "finding"]
    assert sorted(cells) == sorted(table[names].itertuples(index=False, name=None))


def test_statements_that_differ_in_a_number_are_one() -> None:
    assert one_statement(["gap (layer 15)", "gap (layer 16)", "gap (layer 15)"]) == (
        "gap (layer 15 / 16)"
    )
    assert one_statement(["trough: -55", "trough: -40.5"]) == "trough: -55 / -40.5"
    pairs = ["M-3B falls deeper than M-1B", "M-8B falls deeper than M-3B"]
    assert one_statement(pairs) == "; ".join(pairs)  # the numbers of a name are part of the name


def test_runs_of_one_model_are_told_apart_and_a_run_is_given_once(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "b" / "other"]
    for path in paths:
        add_claims(make_run(path, datasets={"atlas": "Atlas"}, layers=3, n=40))
    views = [RunView.open(path) for path in paths]
    model = views[0].model_name
    assert model_names(views[:1]) == [model]
    assert model_names(views) == [
        f"{paths[0].as_posix()}/{model}", f"{paths[1].as_posix()}/{model}", f"other/{model}",
    ]  # fmt: skip
    lines = printed(paths[1], paths[2], "--no-statements")
    assert "atlas" in lines[0]
    assert f"run/{model}" in lines[1] and f"other/{model}" in lines[1], lines
    result = CliRunner().invoke(app, ["claims", str(paths[0]), str(paths[0])])
    assert isinstance(result.exception, UserError)
    assert "is given twice. Give each run folder once." in str(result.exception)
