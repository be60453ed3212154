"""`anchorscope study`: run many models on many datasets and summarise them in one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorscope.cli.options import TrustRemoteCode, read_limit
from anchorscope.cli.run import rank_done
from anchorscope.cli.terminal import Bar, Terminal, echo, plain_table, quiet_libraries
from anchorscope.errors import UserError

if TYPE_CHECKING:
    from anchorscope.pipeline.study.plan import Plan


def study(
    file: Annotated[
        str, typer.Argument(help="A .toml file, or quick, published, paper, or replication.")
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
    trust_remote_code: TrustRemoteCode = False,
    workers: Annotated[int | None, typer.Option(help="The option --workers of each run.")] = None,
    ray: Annotated[str | None, typer.Option(help="The option --ray of each run.")] = None,
    rank: Annotated[
        int | None, typer.Option(help="Compute only this rank's shards of each run, and stop.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option(help="How many ranks there are; needed with the rank.")
    ] = None,
    drop_states: Annotated[
        bool, typer.Option("--drop-states", help="Remove the states of each run that is finished.")
    ] = False,
    max_hours: Annotated[
        float | None,
        typer.Option(help="Start no model once so many hours are spent, or begun runs need more."),
    ] = None,
) -> None:
    """Run every model of a study on all its datasets, and write a summary, study.html.

    The whole study is checked before it starts. A model that fails does not stop the others; the
    same command continues a stopped study. Exit code 1 if a model failed.
    """
    from anchorscope.pipeline.study.file import read_study, value_of
    from anchorscope.pipeline.study.plan import plan_study
    from anchorscope.pipeline.study.study import study as run_study

    typed = {
        "limit": limit and (read_limit(limit) or "all"),
        "workers": workers,
        "ray": ray,
        "rank": rank,
        "world_size": world_size,
        "trust_remote_code": trust_remote_code or None,
    }
    options: dict[str, Any] = {name: value for name, value in typed.items() if value is not None}
    # Values as TOML reads them; what it cannot read is text.
    options |= {name: value_of(text) for name, text in _pairs(option or [], "--option").items()}
    chosen = read_study(file).with_places(_pairs(place or [], "--place")).with_options(options)
    folder = out or Path("runs") / Path(file).stem
    quiet_libraries()
    if plan:
        show_plan(plan_study(chosen, folder, check_machine=False))
        return
    with Bar() as bar:
        result = run_study(
            chosen, out=folder, max_hours=max_hours, drop_states=drop_states, progress=bar
        )
    if rank is not None:
        echo(rank_done(rank, world_size, "study"))
    else:
        echo(f"Study: {result.path / 'study.html'}")
    if result.errors:
        names, count = ", ".join(result.errors), f"{len(result.errors)} of {len(chosen.models)}"
        echo(
            f"{count} models failed ({names}): study.csv and study.html say "
            "why. The same command tries them again.",
            err=True,
        )
        raise typer.Exit(1)


def _pairs(texts: list[str], flag: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, _, value in pairs:
        if not name or not value:
            raise UserError(f"{flag} takes NAME=VALUE, not '{name}{value}'.")
    return {name.strip(): value.strip() for name, _, value in pairs}


def show_plan(plan: Plan) -> None:
    """Print the plan as a table with its assumptions; raise a UserError if it cannot run."""
    from anchorscope.pipeline.study.plan import COLUMNS, plan_notes, plan_rows

    console = Terminal()
    table = plain_table(*COLUMNS)
    for row in plan_rows(plan):
        table.add_row(*row)
    console.print(table)
    console.print()
    for note in plan_notes(plan):
        console.print(note, markup=False, soft_wrap=True)
    plan.require_sound()
