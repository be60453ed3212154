"""`anchorscope study`: run many models on many datasets and summarise them in one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorscope.cli.options import argument, flag, option, with_config
from anchorscope.cli.run import rank_done
from anchorscope.cli.terminal import Bar, Terminal, echo, plain_table, quiet_libraries
from anchorscope.config import Config
from anchorscope.errors import UserError

_TYPED = ("trust_remote_code", "workers", "ray", "rank", "world_size")  # options of each run


@with_config(*_TYPED)
def study(
    file: Annotated[str, argument("A .toml file, or quick, published, paper, or replication.")],
    config: Config,
    out: Annotated[Path | None, option("The study's folder; runs/<study> if not given.")] = None,
    plan: Annotated[bool, flag("--plan", "Print what is to do, and start nothing.")] = False,
    limit: Annotated[
        str | None, option("Questions of each set, or `all`; overrides the file.")
    ] = None,
    place: Annotated[
        list[str] | None,
        option("NAME=PLACE: where a model or dataset of the study is. Repeatable."),
    ] = None,
    more: Annotated[
        list[str] | None,
        flag("--option", "NAME=VALUE: an option of `anchorscope run` for each run. Repeatable."),
    ] = None,
    drop_states: Annotated[
        bool, flag("--drop-states", "Remove the states of each run that is finished.")
    ] = False,
) -> None:
    """Run every model of a study on all its datasets, and write a summary, study.html.

    The whole study is checked before it starts. A model that fails does not stop the others; the
    same command continues a stopped study. Exit code 1 if a model failed.
    """
    from anchorscope.pipeline.study.file import read_study, value_of
    from anchorscope.pipeline.study.study import plan_rows, plan_study
    from anchorscope.pipeline.study.study import study as run_study

    # Values as TOML reads them; what it cannot read is text.
    options = {name: value_of(text) for name, text in _pairs(more or [], "--option").items()}
    typed = {"limit": limit} | {name: getattr(config, name) for name in _TYPED}
    options = {name: value for name, value in typed.items() if value} | options
    if config.rank == 0:
        options["rank"] = 0
    chosen = read_study(file).with_places(_pairs(place or [], "--place")).with_options(options)
    folder = out or Path("runs") / Path(file).stem
    quiet_libraries()
    if plan:
        planned = plan_study(chosen, folder, check_disk=False)
        rows = plan_rows(planned)
        table = plain_table(*(rows[0] if rows else ()))
        for row in rows:
            table.add_row(*row.values())
        Terminal().print(table)
        planned.require_sound()
        return
    with Bar() as bar:
        result = run_study(chosen, out=folder, drop_states=drop_states, progress=bar)
    if config.rank is not None:
        echo(rank_done(config, "study"))
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
