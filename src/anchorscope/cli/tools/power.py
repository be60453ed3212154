"""`anchorscope power`: why a finding is undecided, and how many questions would decide it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from anchorscope.cli.terminal import Terminal, echo
from anchorscope.errors import UserError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from anchorscope.pathways.diagnosis.why import Why
    from anchorscope.records import Estimate


def power(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[
        str, typer.Option(help="Some of the run's datasets, joined by commas; default: all.")
    ] = "",
    worlds: Annotated[int, typer.Option(help="Planted worlds at each number of questions.")] = 40,
    out: Annotated[Path | None, typer.Option(help="Also write the table to this .csv.")] = None,
) -> None:
    """Says why a finding is undecided or not shown, and how many questions would decide it.

    Two pathways are planted in the run's own logits, as far apart as the run itself suggests and
    as in the clear case, with more and more questions, until strict mode shows them in 80 % of the
    worlds. It also says which layer was chosen, and whether its probe is better than chance.
    """
    if worlds < 10:
        raise UserError(f"--worlds is {worlds}. Accepted: 10 or more.")
    from anchorscope.cli.bar import Bar
    from anchorscope.pathways.diagnosis.why import why
    from anchorscope.run_folder.view import RunView

    view = RunView.open(run)
    names = [name.strip() for name in data.split(",") if name.strip()] or view.datasets
    for name in names:
        if name not in view.datasets:
            raise unknown("dataset", name, view.datasets)
    reasons = []
    for name in names:
        with Bar() as bar:
            bar.note(f"{name}: planting worlds ...")
            reasons.append(why(view, name, worlds=worlds))
    console = Terminal()
    console.print(_probes(reasons))
    console.print(_needed(reasons))
    for reason in reasons:
        console.print(" ".join(reason.sentences), markup=False)
    if out is not None:
        _rows(reasons).to_csv(out, index=False)
        echo(str(out))


def _probes(reasons: list[Why]) -> Table:
    """Which layer, and what its probe reads."""
    table = _table("dataset", "layer", "right", "wrong", "AUROC", "shuffled labels", "probe")
    for reason in reasons:
        probe = reason.probe
        table.add_row(
            reason.dataset,
            f"{probe.layer} of {probe.layers}",
            str(probe.right),
            str(probe.wrong),
            _interval(probe.auroc, ".2f"),
            f"{min(probe.shuffled):.2f} to {max(probe.shuffled):.2f}",
            "at chance" if probe.at_chance else "reads",
        )
    return table


def _needed(reasons: list[Why]) -> Table:
    """The chance now, and the number of questions for 80 % of an effect like the run's."""
    table = _table("dataset", "finding", "n now", "power now", "n for 80 %", "clear case", "limit")
    for reason in reasons:
        table.add_row(
            reason.dataset,
            reason.finding,
            f"{reason.usable} of {reason.asked}",
            _interval(reason.own.now, ".0%") if reason.own else "none",
            _count(reason.questions(reason.own)),
            _count(reason.questions(reason.clear)),
            reason.limit,
        )
    return table


def _count(of: Estimate) -> str:
    """A number of questions with its interval."""
    if math.isnan(of.value):
        return "beyond reach"
    return f"{of.value:,.0f} ({of.low:,.0f} to {of.high:,.0f})"


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _interval(of: Estimate, form: str) -> str:
    return f"{of.value:{form}} ({of.low:{form}} to {of.high:{form}})"


def _rows(reasons: list[Why]) -> pd.DataFrame:
    """One row for each dataset, every number with its interval."""
    import pandas as pd

    rows = []
    for reason in reasons:
        probe = reason.probe
        row = {
            "dataset": reason.dataset, "finding": reason.finding, "layer": probe.layer,
            "right": probe.right, "wrong": probe.wrong, **_columns("auroc", probe.auroc),
            "shuffled_auroc": sum(probe.shuffled) / len(probe.shuffled),
            "at_chance": probe.at_chance, "questions": reason.asked, "usable": reason.usable,
        }  # fmt: skip
        for name, of in (("own", reason.own), ("clear", reason.clear)):
            if of is not None:
                row |= {f"{name}_apart": of.apart, f"{name}_share": of.share}
                row |= _columns(f"{name}_power", of.now)
                row |= _columns(f"{name}_questions", reason.questions(of))
        rows.append({**row, "limit": reason.limit})
    return pd.DataFrame(rows)


def _columns(name: str, of: Estimate) -> dict[str, float]:
    return {name: of.value, f"{name}_low": of.low, f"{name}_high": of.high}
