"""`anchorscope doctor`: is this model understood?"""

from __future__ import annotations

from typing import Annotated

import typer

from anchorscope.cli.terminal import Terminal
from anchorscope.config import default_of, help_of


def doctor(
    model: Annotated[str, typer.Option(help=help_of("model"))] = default_of("model"),
    device: Annotated[str, typer.Option(help=help_of("device"))] = default_of("device"),
    dtype: Annotated[str, typer.Option(help=help_of("dtype"))] = default_of("dtype"),
    revision: Annotated[str | None, typer.Option(help=help_of("revision"))] = None,
    adapter: Annotated[str | None, typer.Option(help=help_of("adapter"))] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help=help_of("trust_remote_code"))
    ] = False,
) -> None:
    """Checks that the knockout is exact on a model, line by line; exit code 2 if a check fails."""
    from anchorscope.cli.bar import quiet_libraries
    from anchorscope.engine.check import check_model
    from anchorscope.models import load_model

    quiet_libraries()
    loaded = load_model(
        model, device=device, dtype=dtype, revision=revision, adapter=adapter,
        trust_remote_code=trust_remote_code,
    )  # fmt: skip
    console = Terminal(soft_wrap=True)
    console.print(f"{loaded.name}: {loaded.why}", markup=False)
    failed = 0
    for check in check_model(loaded):
        failed += not check.ok
        console.print("[green]  ok [/]" if check.ok else "[red]  no [/]", end="")
        console.print(f" {check.name} ({check.seen})", markup=False)
    said = f"not understood: {failed} check{'s' if failed > 1 else ''} failed"
    console.print("understood" if not failed else said)
    if failed:
        raise typer.Exit(2)
