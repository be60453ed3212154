"""`anchorscope study`: many models on many datasets, one command, one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from anchorscope.cli.terminal import Terminal, echo
from anchorscope.config import help_of
from anchorscope.errors import UserError

if TYPE_CHECKING:
    from anchorscope.pipeline.study.check import Checked
    from anchorscope.pipeline.study.hardware import Hardware


def study(
    file: Annotated[
        str, typer.Argument(help="A .toml file, or quick, seeds, paper, or replication.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The study's folder; runs/<study> if not given.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what it would cost, and start nothing.")
    ] = False,
    limit: Annotated[
        str | None, typer.Option(help="Questions of each set, or `all`; overrides the file.")
    ] = None,
    place: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PLACE: where a model or dataset of the study is. Repeatable."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE: an option of `anchorscope run` for each run. Repeatable."),
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help=help_of("trust_remote_code"))
    ] = False,
    workers: Annotated[int | None, typer.Option(help="The option --workers of each run.")] = None,
    ray: Annotated[str | None, typer.Option(help="The option --ray of each run.")] = None,
    rank: Annotated[
        int | None, typer.Option(help="Compute only this rank's shards of each run, and stop.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option(help="How many ranks there are; needed with the rank.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs to plan for; this machine's if not given.")
    ] = None,
    gpu_kind: Annotated[
        str | None, typer.Option(help="Kind to plan for: h200, h100, a100, a100-40, l40s, or cpu.")
    ] = None,
    drop_states: Annotated[
        bool, typer.Option("--drop-states", help="Remove the states of each run that is finished.")
    ] = False,
    max_hours: Annotated[
        float | None, typer.Option(help="Do not start if the plan needs more hours.")
    ] = None,
) -> None:
    """Runs every model of a study on all its datasets, and writes a summary, study.html.

    The whole study is checked before it starts. A model that fails does not stop the others; the
    same command continues a stopped study. Exit code 1 if a model failed.
    """
    from anchorscope.cli.bar import Bar, quiet_libraries
    from anchorscope.pipeline.study.check import check_study, this_machine
    from anchorscope.pipeline.study.file import read_study
    from anchorscope.pipeline.study.study import study as run_study

    given = {"limit": limit and _limit(limit), "workers": workers, "ray": ray}
    given |= {
        "rank": rank,
        "world_size": world_size,
        "trust_remote_code": trust_remote_code or None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    asked = read_study(file).with_places(_pairs(place or [], "--place"))
    asked = asked.with_options(options | _options(option or []))
    folder = out or Path("runs") / Path(file).stem
    on = this_machine(gpus, gpu_kind)
    quiet_libraries()
    if plan:
        show_plan(check_study(asked, folder, on, here=False), on)
        return
    with Bar() as bar:
        result = run_study(
            asked, out=folder, on=on, max_hours=max_hours, drop_states=drop_states, progress=bar
        )
    if rank is not None:
        echo(
            f"The shards of rank {rank} of {world_size} are done. When all ranks are, the same "
            "command without --rank and --world-size finishes the study."
        )
    else:
        echo(f"Study: {result.path / 'study.html'}")
    if result.errors:
        names, count = ", ".join(result.errors), len(result.errors)
        echo(
            f"{count} of {len(asked.models)} models failed ({names}): study.csv and study.html say "
            "why. The same command tries them again.",
            err=True,
        )
        raise typer.Exit(1)


def _limit(text: str) -> int | str:
    from anchorscope.cli.run import limit_of

    return "all" if text == "all" else limit_of(text) or "all"


def _pairs(texts: list[str], flag: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, _, value in pairs:
        if not name or not value:
            raise UserError(f"{flag} takes NAME=VALUE, not '{name}{value}'.")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _options(texts: list[str]) -> dict[str, Any]:
    """Options with their values as TOML reads them; what it cannot read is text."""
    from anchorscope.pipeline.study.file import value_of

    return {name: value_of(text) for name, text in _pairs(texts, "--option").items()}


def show_plan(checked: Checked, on: Hardware) -> None:
    """Prints the plan as a table, the totals, what it rests on, and what is wrong."""
    from anchorscope.pipeline.study.told import COLUMNS, notes, plan_rows

    console, rows = Terminal(), plan_rows(checked)
    work, time = COLUMNS[1:7], COLUMNS[7:]  # two tables: one would be wider than a terminal
    for names in (work, time):
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column(COLUMNS[0])
        for name in names:
            table.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(row[0], *(row[COLUMNS.index(name)] for name in names))
        console.print(table)
        console.print()
    for note in notes(checked, on):
        console.print(note, markup=False, soft_wrap=True)
    checked.require_sound()
