"""The claims of runs, one row a claim and one column a dataset, for pages and the terminal."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from anchorscope.claims.inputs import ClaimInputs, from_tables
from anchorscope.claims.table import claims_table
from anchorscope.records import MODES, Mode
from anchorscope.run_folder.view import RunView, records
from anchorscope.show.words import short, span

Kind = Literal["dataset", "datasets", "models", "figure"]
TITLES: Mapping[Kind, str] = {
    "dataset": "On each dataset",
    "datasets": "Between datasets",
    "models": "Between models",
    "figure": "The published figure",
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

    @property
    def interval(self) -> str:
        """The interval and p-value in words; empty where there is no interval."""
        if not math.isfinite(self.low) or not math.isfinite(self.high):
            return ""
        ends = f"95 % interval {span(self.low, self.high, short)}"
        return ends if math.isnan(self.p) else f"{ends}, p = {self.p:.2g}"


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

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(column.model for column in self.columns))

    def finding(self, column: Column) -> str:
        """The column's finding, empty where no claim of the block carries one."""
        cells = [row.cells[column] for row in self.rows if column in row.cells]
        return next((cell.finding for cell in cells if cell.finding), "")


def claims_of(runs: Sequence[RunView]) -> pd.DataFrame:
    """The claims table of one run or several."""
    inputs = [claim_inputs(run) for run in runs]
    names = model_names(runs)
    table = claims_table([replace(i, model=name) for i, name in zip(inputs, names, strict=True)])
    return with_detectors(table, runs, names)


def claim_inputs(run: RunView) -> ClaimInputs:
    """Read what the claims are decided from out of a run folder."""
    tables = {"pathways": run.pathways, "strict": run.strict, "findings": run.findings}
    return from_tables(run.info, tables | run.evidence, run.samples)


def with_detectors(
    table: pd.DataFrame, runs: Sequence[RunView], names: Sequence[str]
) -> pd.DataFrame:
    """The claims with those about detectors after them, where `detect eval` was run on a folder.

    These are corrected among themselves: each is compared with the same probe.
    """
    own = []
    for run, name in zip(runs, names, strict=True):
        more = run.detector_claims
        own.append(more[more["dataset"].isin(list(run.titles))].assign(model=name))
    own = [more for more in own if len(more)]
    return pd.concat([table, *own], ignore_index=True) if own else table


def model_names(runs: Sequence[RunView]) -> list[str]:
    """Each run's model; `folder/model` where two runs are of one model, so that no name is twice.

    The published figures of a model are found by what follows the last slash of its name.
    """
    models = Counter(run.model_name for run in runs)
    folders = Counter((run.path.resolve().name, run.model_name) for run in runs)

    def name(run: RunView) -> str:
        path = run.path.resolve()
        alone = folders[path.name, run.model_name] == 1
        folder = path.name if alone else path.as_posix()
        return run.model_name if models[run.model_name] == 1 else f"{folder}/{run.model_name}"

    return [name(run) for run in runs]


def run_blocks(run: RunView) -> list[Block]:
    """The claims of one run's claims.csv, with those about detectors, as blocks."""
    table = with_detectors(run.claims, [run], [run.model_name])
    return grouped_claims(table, single_columns([run]))


def single_columns(runs: Sequence[RunView]) -> list[Column]:
    """Each dataset with each model that has it: the models of one dataset are side by side."""
    named = list(zip(model_names(runs), runs, strict=True))
    datasets = dict.fromkeys(dataset for run in runs for dataset in run.titles)
    return [Column(name, d) for d in datasets for name, run in named if d in run.titles]


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
    """The block of a claim. A figure shows one model: its numbers are not those of another.

    A name with a comma in it may be one dataset: `single` tells which columns are.
    """
    if str(row["claim"]).startswith("figure-"):
        return "figure", str(row["model"])
    if _column(row) in single:
        return "dataset", ""
    return "datasets" if str(row["model"]) in {c.model for c in single} else "models", ""


def _column(row: Mapping[str, Any]) -> Column:
    return Column(str(row["model"]), str(row["dataset"]))


def _columns(rows: Sequence[ClaimRow], single: Sequence[Column]) -> tuple[Column, ...]:
    """The columns that the rows have cells in: single ones in the runs' order, then the others."""
    used = dict.fromkeys(column for row in rows for column in row.cells)
    return tuple(dict.fromkeys([*(column for column in single if column in used), *used]))


def _row(rows: Sequence[dict[str, Any]]) -> ClaimRow:
    return ClaimRow(
        claim=str(rows[0]["claim"]),
        statement=one_statement([str(row["statement"]) for row in rows]),
        source="; ".join(dict.fromkeys(str(row["source"]) for row in rows)),
        cells={
            _column(row): Cell(
                modes={mode: decided(row, mode) for mode in MODES}, finding=str(row["finding"])
            )
            for row in rows
        },
    )


def decided(row: Mapping[str, Any], mode: Mode) -> Decided:
    """One mode's columns of a row of claims.csv."""
    value, low, high, p = (float(row[f"{mode}_{name}"]) for name in ("value", "low", "high", "p"))
    return Decided(verdict=str(row[f"{mode}_decision"]), value=value, low=low, high=high, p=p)


def one_statement(statements: Sequence[str]) -> str:
    """The columns' statements as one: where a number differs, each that occurs is listed.

    >>> one_statement(["gap at layer 15", "gap at layer 16"])
    'gap at layer 15 / 16'
    """
    parts = [_NUMBER.split(text) for text in statements]
    if len({tuple(part[::2]) for part in parts}) > 1:  # the words differ: all of them, one by one
        return "; ".join(dict.fromkeys(statements))
    return "".join(" / ".join(dict.fromkeys(place)) for place in zip(*parts, strict=True))
