"""`anchorscope claims`: which published claims a run supports, in both modes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
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
    from anchorscope.run_folder.view import RunView
    from anchorscope.show.report.claims_table import claims_of

    views = [RunView.open(run) for run in runs]
    table = claims_of(views)
    drawn = Table("claim", "paper", "", "strict", "", box=SIMPLE_HEAD, pad_edge=False)
    for row in table.to_dict("records"):
        name = f"[bold]{escape(str(row['claim']))}[/] {escape(str(row['dataset']))}"
        if len(views) > 1:
            name += f" ({escape(str(row['model']))})"
        cells = [f"{name}\n[dim]{escape(str(row['statement']))}[/]"]
        for mode in ("paper", "strict"):
            verdict = str(row[f"{mode}_verdict"])
            found = f"\n[dim]{row['finding']}[/]" if mode == "strict" and row["finding"] else ""
            cells += [_number(float(row[f"{mode}_value"]))]
            cells += [f"[{_COLOURS[verdict]}]{verdict}[/]{found}"]
        drawn.add_row(*cells)
    Console(highlight=False).print(drawn)
    if out is not None:
        table.to_csv(out, index=False)
        typer.echo(str(out))


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"
