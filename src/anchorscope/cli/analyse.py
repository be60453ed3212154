"""`anchorscope analyse`: states that were extracted elsewhere, read as a run's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorscope.cli.run import config_of, limit_of, option
from anchorscope.cli.terminal import echo
from anchorscope.config import default_of


def analyse(
    file: Annotated[
        Path,
        typer.Argument(
            help="A .npz or .safetensors file with clean and knockout [sample, layer, width], z "
            "[sample], and optionally neutral, content, question, retest, retest-knockout."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The run folder; continued if it exists.")] = Path(
        "runs/states"
    ),
    title: Annotated[
        str | None, typer.Option(help="The model's name in the report; default: the file's name.")
    ] = None,
    limit: Annotated[str, typer.Option(help="Number of samples, or `all`.")] = "all",
    grouping: Annotated[str, option("grouping")] = default_of("grouping"),
    delta: Annotated[str, option("delta")] = default_of("delta"),
    folds: Annotated[int, option("folds")] = default_of("folds"),
    fold_seeds: Annotated[int, option("fold_seeds")] = default_of("fold_seeds"),
    C: Annotated[float, option("C", "--C")] = default_of("C"),
    balance: Annotated[str, option("balance")] = default_of("balance"),
    resamples: Annotated[int, option("resamples")] = default_of("resamples"),
    seed: Annotated[int, option("seed")] = default_of("seed"),
    evidence: Annotated[
        str, typer.Option(help="none, or of answer-only, boundary, awareness.")
    ] = ",".join(default_of("evidence")),
) -> None:
    """Analyses states that you extracted yourself, with the results of `run`; needs no model.

    The arrays of the file, and an example: docs/own-states.md.
    """
    given = {name: value for name, value in locals().items() if name not in _NOT_CONFIG}
    config = config_of(given)

    from anchorscope.cli.bar import Bar
    from anchorscope.pipeline.own_states.analyse import analyse as analyse_states

    with Bar() as bar:
        view = analyse_states(
            file, out=out, title=title, limit=limit_of(limit), config=config, progress=bar
        )
    echo(f"Report: {view.path / 'report.html'}")


_NOT_CONFIG = ("file", "out", "title", "limit")
