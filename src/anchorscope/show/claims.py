"""Tabulate the claims of runs for pages and the terminal: a row per claim, a column per dataset."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import pandas as pd

from anchorscope.claims.decision import ClaimInputs, from_tables
from anchorscope.claims.table import claims_table
from anchorscope.records import Mode
from anchorscope.run_folder.view import RunView, records
from anchorscope.show.html import short, span

Kind = Literal["dataset", "datasets", "models", "figure"]
TITLES: Mapping[Kind, str] = {
    "dataset": "On each dataset",
    "datasets": "Between datasets",
    "models": "Between models",
    "figure": "The published figure",
}
# A number that is a whole word: digits within a model's name do not count.
_NUMBER = re.compile(r"(?<![\w.-])(-?\d+(?:\.\d+)?)(?![\w-])")


class Column(NamedTuple):
    """The model (or two, compared) and the dataset (or several) of a decision."""

    model: str
    dataset: str


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """A claim with its rows of claims.csv by column; columns without a decision are absent."""

    claim: str
    cells: Mapping[Column, Mapping[str, Any]]

    @property
    def statement(self) -> str:
        return one_statement([str(cell["statement"]) for cell in self.cells.values()])

    @property
    def source(self) -> str:
        return "; ".join(dict.fromkeys(str(cell["source"]) for cell in self.cells.values()))


@dataclass(frozen=True, kw_only=True)
class Block:
    """Claims that share their columns."""

    kind: Kind
    columns: Sequence[Column]
    rows: Sequence[ClaimRow]

    @property
    def title(self) -> str:
        return TITLES[self.kind]

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(column.model for column in self.columns))

    def finding(self, column: Column) -> str:
        """The column's finding, empty where no claim of the block carries one."""
        findings = [str(row.cells[column]["finding"]) for row in self.rows if column in row.cells]
        return next(filter(None, findings), "")


def claims_of(runs: Sequence[RunView]) -> pd.DataFrame:
    """The claims table of one run or several."""
    inputs = [claim_inputs(run) for run in runs]
    names = model_names(runs)
    table = claims_table([replace(i, model=name) for i, name in zip(inputs, names, strict=True)])
    return with_detectors(table, runs, names)


def claim_inputs(run: RunView) -> ClaimInputs:
    """Read the inputs of the claims from a run folder."""
    tables = {"pathways": run.pathways, "strict": run.strict, "findings": run.findings}
    return from_tables(run.info, tables | run.evidence, run.samples)


def with_detectors(
    table: pd.DataFrame, runs: Sequence[RunView], names: Sequence[str]
) -> pd.DataFrame:
    """Append the claims about detectors, if `detect eval` was run on a folder.

    These are corrected among themselves: each compares with the same probe.
    """
    own = []
    for run, name in zip(runs, names, strict=True):
        more = run.detector_claims
        own.append(more[more["dataset"].isin(list(run.titles))].assign(model=name))
    own = [more for more in own if len(more)]
    return pd.concat([table, *own], ignore_index=True) if own else table


def model_names(runs: Sequence[RunView]) -> list[str]:
    """A unique name for each run's model: `folder/model` if several runs share a model.

    The published figures of a model are found by the part after the last slash of its name.
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
    """A column for each dataset and model that has it; models of one dataset are side by side."""
    named = list(zip(model_names(runs), runs, strict=True))
    datasets = dict.fromkeys(dataset for run in runs for dataset in run.titles)
    return [Column(name, d) for d in datasets for name, run in named if d in run.titles]


def grouped_claims(table: pd.DataFrame, single: Sequence[Column]) -> list[Block]:
    """Group the rows of a claims table into blocks of claims that share columns.

    `single` is each model with each of its datasets, in order. Every row of the table is in
    exactly one cell. A claim that a column has twice gets a second row, so that no decision is
    lost.
    """
    models = {column.model for column in single}
    found: dict[tuple[Kind, str], dict[tuple[str, int], dict[Column, Mapping[str, Any]]]] = {}
    for row in records(table):
        claim, column = str(row["claim"]), Column(str(row["model"]), str(row["dataset"]))
        # A name with a comma in it may be one dataset: `single` tells which columns are.
        kind: Kind = "dataset" if column in single else "datasets"
        if column.model not in models:
            kind = "models"
        # A published figure shows one model, so each model has a block of its own.
        figure = claim.startswith("figure-")
        rows = found.setdefault(("figure", column.model) if figure else (kind, ""), {})
        times = 0
        while column in rows.setdefault((claim, times), {}):
            times += 1
        rows[claim, times][column] = row
    order = list(TITLES)
    blocks = []
    for (kind, _), rows in sorted(found.items(), key=lambda item: order.index(item[0][0])):
        used = dict.fromkeys(column for cells in rows.values() for column in cells)
        columns = dict.fromkeys([*(column for column in single if column in used), *used])
        claims = [ClaimRow(claim=claim, cells=cells) for (claim, _), cells in rows.items()]
        blocks.append(Block(kind=kind, columns=tuple(columns), rows=claims))
    return blocks


def interval(cell: Mapping[str, Any], mode: Mode) -> str:
    """A mode's interval and p-value in words; empty where there is no interval."""
    low, high, p = (float(cell[f"{mode}_{name}"]) for name in ("low", "high", "p"))
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    ends = f"95 % interval {span(low, high, short)}"
    return ends if math.isnan(p) else f"{ends}, p = {p:.2g}"


def one_statement(statements: Sequence[str]) -> str:
    """Merge the statements of several columns; numbers that differ are listed.

    >>> one_statement(["gap at layer 15", "gap at layer 16"])
    'gap at layer 15 / 16'
    """
    parts = [_NUMBER.split(text) for text in statements]
    if len({tuple(part[::2]) for part in parts}) > 1:  # the words differ: list whole statements
        return "; ".join(dict.fromkeys(statements))
    return "".join(" / ".join(dict.fromkeys(place)) for place in zip(*parts, strict=True))
