"""Claims by model: a row a claim, a column a model, and a line for each dataset in the cell."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from anchorscope.records import MODES
from anchorscope.run_folder.view import RunView
from anchorscope.show.curves import all_titles
from anchorscope.show.report.claims_table import short, single_columns
from anchorscope.show.report.grouped_claims import Block, Cell, ClaimRow, Column, grouped_claims
from anchorscope.show.report.markup import Safe, join, tag

HOW = (
    "Each line: the dataset, then paper mode | strict mode, each with its decision and number. "
    "P-values are corrected for all claims of this table (Holm), but for the first one."
)


def claims_by_model(claims: pd.DataFrame, runs: Sequence[RunView]) -> Safe:
    """Every block of the claims table, each model's cells in a column of its own."""
    titles = all_titles(runs)
    parts: list[Safe] = []
    for block in grouped_claims(claims, single_columns(runs)):
        drawn = _table(block, titles)
        if block.kind == "reading":  # many rows that few look for: folded
            said = f"{block.title} of {block.columns[0].model}: {len(block.rows)} things said of it"
            parts.append(tag("details", tag("summary", said), drawn))
        else:
            parts += [tag("h3", block.title), drawn]
    return join([*parts, tag("p", HOW, class_="quiet")])


def _table(block: Block, titles: dict[str, str]) -> Safe:
    models = list(dict.fromkeys(column.model for column in block.columns))
    head = [tag("th", "Claim", scope="col"), *(tag("th", model, scope="col") for model in models)]
    body = [
        tag("tr", _statement(row), *(_cell(row, model, block, titles) for model in models))
        for row in block.rows
    ]
    inner = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))
    return tag("div", inner, class_="wide claims", tabindex="0")


def _statement(row: ClaimRow) -> Safe:
    name = tag("span", f"{row.claim} · {row.source}", class_="under quiet")
    return tag("th", row.statement[:1].upper() + row.statement[1:], name, scope="row")


def _cell(row: ClaimRow, model: str, block: Block, titles: dict[str, str]) -> Safe:
    mine = [column for column in block.columns if column.model == model and column in row.cells]
    return tag("td", *(_line(column, row.cells[column], titles) for column in mine))


def _line(column: Column, cell: Cell, titles: dict[str, str]) -> Safe:
    """`PopQA  holds −17.4 | not shown −3.1`."""
    several = "," in column.dataset and column.dataset not in titles
    name = "all" if several else titles.get(column.dataset, column.dataset)
    halves = [
        join([_word(cell.modes[mode].verdict), " ", short(cell.modes[mode].value)])
        for mode in MODES
    ]
    return tag("span", tag("i", f"{name} "), join(halves, " | "), class_="under")


def _word(verdict: str) -> Safe:
    return tag("b", verdict, class_=f"decided {verdict.replace(' ', '-')}")
