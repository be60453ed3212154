"""`anchorscope claims`: which published claims a run supports, in both modes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

_COLOURS = {"holds": "green", "fails": "red", "undecided": "yellow", "not measured": "dim"}


def claims(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; two models are compared.")],
    out: Annotated[
        Path | None, typer.Option(help="Also write the table to this .csv file.")
    ] = None,
) -> None:
    """Prints each claim with its number and verdict, in paper mode and in strict mode.

    One run's table is its tables/claims.csv. With several runs it also compares the models, and
    the correction for many claims covers all of them.
    """
    from anchorscope.show import RunView
    from anchorscope.show.claims import claims_of

    views = [RunView.open(run) for run in runs]
    table = claims_of(views)
    console = Console(highlight=False)
    drawn = Table("claim", "dataset", "statement", "paper", "", "strict", "", "finding")
    for row in table.to_dict("records"):
        cells = [str(row["claim"]), str(row["dataset"]), str(row["statement"])]
        for mode in ("paper", "strict"):
            verdict = str(row[f"{mode}_verdict"])
            cells += [_number(float(row[f"{mode}_value"]))]
            cells += [f"[{_COLOURS[verdict]}]{verdict}[/]"]
        drawn.add_row(*cells, str(row["finding"]))
    console.print(drawn)
    if out is not None:
        table.to_csv(out, index=False)
        typer.echo(str(out))


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"
