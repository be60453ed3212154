"""The claims table turned: one row a claim, one column a dataset, for the page and the terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from anchorscope.records import MODES, Mode
from anchorscope.run_folder.view import records

Kind = Literal["dataset", "datasets", "models", "reading"]
TITLES: Mapping[Kind, str] = {
    "dataset": "On each dataset",
    "datasets": "Between datasets",
    "models": "Between models",
    "reading": "The published figure",
}
# A number that is a word of its own: those of a model's name are part of the name.
_NUMBER = re.compile(r"(?<![\w.-])(-?\d+(?:\.\d+)?)(?![\w-])")


@dataclass(frozen=True)
class Column:
    """What a verdict is about: a model (or two, compared) and a dataset (or several)."""

    model: str
    dataset: str


@dataclass(frozen=True, kw_only=True)
class Decided:
    """One mode's number and verdict; NaN where it was not measured."""

    verdict: str
    value: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What both modes say of one claim in one column."""

    modes: Mapping[Mode, Decided]
    finding: str  # strict mode's finding, where the claim is about it


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """A claim with its cells by column; a column it says nothing of has no cell."""

    claim: str
    statement: str
    source: str
    cells: Mapping[Column, Cell]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Claims that share their columns."""

    kind: Kind
    columns: tuple[Column, ...]
    rows: tuple[ClaimRow, ...]

    @property
    def title(self) -> str:
        return TITLES[self.kind]

    def finding(self, column: Column) -> str:
        """The column's finding, empty where no claim of the block carries one."""
        cells = [row.cells[column] for row in self.rows if column in row.cells]
        return next((cell.finding for cell in cells if cell.finding), "")


def grouped_claims(table: pd.DataFrame, single: Sequence[Column]) -> list[Block]:
    """The blocks of a claims table. `single` is each model with each of its datasets, in order.

    Every row of the table is in exactly one cell. A claim that a column has twice gets a second
    row, so that none of its verdicts is lost.
    """
    claims: dict[tuple, list[dict[str, Any]]] = {}
    times: Counter[tuple[str, Column]] = Counter()
    for row in records(table):
        name, column = str(row["claim"]), _column(row)
        claims.setdefault((*_block(row, single), name, times[name, column]), []).append(row)
        times[name, column] += 1
    blocks: dict[tuple[Kind, str], list[ClaimRow]] = {}
    for same in claims.values():
        blocks.setdefault(_block(same[0], single), []).append(_row(same))
    order = list(TITLES)
    return [
        Block(kind=kind, columns=_columns(rows, single), rows=tuple(rows))
        for (kind, _), rows in sorted(blocks.items(), key=lambda item: order.index(item[0][0]))
    ]


def _block(row: Mapping[str, Any], single: Sequence[Column]) -> tuple[Kind, str]:
    """The block of a claim. A figure shows one model: its numbers are not those of another."""
    kind = _kind(row, single)
    return kind, str(row["model"]) if kind == "reading" else ""


def _column(row: Mapping[str, Any]) -> Column:
    return Column(str(row["model"]), str(row["dataset"]))


def _kind(row: Mapping[str, Any], single: Sequence[Column]) -> Kind:
    """A name with a comma in it may be one dataset: what is single is told, not guessed."""
    if str(row["claim"]).startswith("reading-"):
        return "reading"
    if _column(row) in single:
        return "dataset"
    return "datasets" if str(row["model"]) in {c.model for c in single} else "models"


def _columns(rows: Iterable[ClaimRow], single: Sequence[Column]) -> tuple[Column, ...]:
    """The columns that the rows speak of: single ones in the runs' order, then the others."""
    spoken = dict.fromkeys(column for row in rows for column in row.cells)
    first = [column for column in single if column in spoken]
    return tuple(dict.fromkeys([*first, *spoken]))


def _row(rows: Sequence[dict[str, Any]]) -> ClaimRow:
    return ClaimRow(
        claim=str(rows[0]["claim"]),
        statement=one_statement([str(row["statement"]) for row in rows]),
        source="; ".join(dict.fromkeys(str(row["source"]) for row in rows)),
        cells={_column(row): _cell(row) for row in rows},
    )


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(modes={mode: _decided(row, mode) for mode in MODES}, finding=str(row["finding"]))


def _decided(row: Mapping[str, Any], mode: Mode) -> Decided:
    value, low, high, p = (float(row[f"{mode}_{name}"]) for name in ("value", "low", "high", "p"))
    return Decided(verdict=str(row[f"{mode}_decision"]), value=value, low=low, high=high, p=p)


def one_statement(statements: Sequence[str]) -> str:
    """The columns' statements as one: where a number differs, each that occurs is listed.

    >>> one_statement(["gap at layer 15", "gap at layer 16"])
    'gap at layer 15 / 16'
    """
    parts = [_NUMBER.split(text) for text in statements]
    if len({tuple(part[::2]) for part in parts}) > 1:  # the words differ: said one by one
        return "; ".join(dict.fromkeys(statements))
    return "".join(" / ".join(dict.fromkeys(place)) for place in zip(*parts, strict=True))
