"""The claims of runs on disk, and their table in the report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from anchorscope.claims.inputs import ClaimInputs, from_tables
from anchorscope.claims.table import claims_table
from anchorscope.records import MODES, Mode
from anchorscope.run_folder.view import RunView
from anchorscope.show.report.grouped_claims import Block, Cell, ClaimRow, Column, Decided
from anchorscope.show.report.grouped_claims import grouped_claims as grouped
from anchorscope.show.report.markup import Safe, join, tag
from anchorscope.show.report.words import number


def claims_of(runs: Sequence[RunView]) -> pd.DataFrame:
    """The claims table of one run or several."""
    inputs = [claim_inputs(run) for run in runs]
    names = model_names(runs)
    table = claims_table([replace(i, model=name) for i, name in zip(inputs, names, strict=True)])
    return with_detectors(table, runs, names)


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


def claim_inputs(run: RunView) -> ClaimInputs:
    """A run folder as the claims see it."""
    tables = {"pathways": run.pathways, "strict": run.strict, "findings": run.findings}
    return from_tables(run.info, tables | run.evidence, run.samples)


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


def single_columns(runs: Sequence[RunView]) -> list[Column]:
    """Each dataset with each model that has it: models of one dataset stand side by side."""
    named = list(zip(model_names(runs), runs, strict=True))
    datasets = dict.fromkeys(dataset for run in runs for dataset in run.titles)
    return [Column(name, d) for d in datasets for name, run in named if d in run.titles]


def claims(run: RunView) -> Safe:
    """Every claim as one row, with both modes' number and verdict on each dataset."""
    parts: list[Safe] = []
    table = with_detectors(run.claims, [run], [run.model_name])
    for block in grouped(table, single_columns([run])):
        drawn = _table(block, run.titles)
        if block.kind == "reading":  # many rows with few cells each: folded
            said = f"{block.title}: {len(block.rows)} things that descriptions of it say"
            parts.append(tag("details", tag("summary", said), drawn))
        else:
            parts += [tag("h3", block.title), drawn]
    how = (
        "A claim is undecided where its interval allows both, and not shown in strict mode where "
        "two pathways are not: Q and A are then groups that something else gives as well. P-values "
        "are corrected for the "
        "number of claims (Holm), but for the first one, which is the question of the run. "
        "Hold the pointer over a number for its interval."
    )
    return join([*parts, tag("p", how, class_="quiet")])


def _table(block: Block, titles: Mapping[str, str]) -> Safe:
    """One row a claim: statement, then a cell for each column."""
    names = {",".join(titles): ", ".join(titles.values()), **titles}
    head = [tag("th", "Claim", scope="col")]
    head += [tag("th", names.get(c.dataset, c.dataset), scope="col") for c in block.columns]
    body = [
        tag("tr", _statement(row), *(_td(row.cells.get(column)) for column in block.columns))
        for row in block.rows
    ]
    inner = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))
    return tag("div", inner, class_="wide claims", tabindex="0")


def _statement(row: ClaimRow) -> Safe:
    name = tag("span", f"{row.claim} · {row.source}", class_="under quiet")
    return tag("th", row.statement[:1].upper() + row.statement[1:], name, scope="row")


def _td(cell: Cell | None) -> Safe:
    return tag("td", *(_line(mode, cell.modes[mode]) for mode in MODES) if cell else ())


def _line(mode: Mode, decided: Decided) -> Safe:
    """`paper holds −17.4`: the mode, the verdict in its colour, the number."""
    word = tag("b", decided.verdict, class_=f"decided {decided.verdict.replace(' ', '-')}")
    value = tag("span", short(decided.value), title=_ends(decided), class_="number")
    return tag("span", tag("i", mode), word, value, class_="mode")


def _ends(decided: Decided) -> str | None:
    if not math.isfinite(decided.low) or not math.isfinite(decided.high):
        return None
    ends = f"95 % interval {short(decided.low)} to {short(decided.high)}"
    return ends if math.isnan(decided.p) else f"{ends}, p = {decided.p:.2g}"


def short(value: float) -> str:
    """Three figures or so, empty where there is no number: `−17.4`, `2.83`."""
    if not math.isfinite(value):
        return ""
    return number(value, 1 if abs(value) >= 9.995 else 2)
