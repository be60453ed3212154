"""`anchorscope figure`: the ΔP figure of one run or several, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorscope.errors import UserError, unknown

_FORMATS = (".png", ".svg", ".pdf")
_MODES = ("paper", "strict", "both")


def figure(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, one panel for each model.")],
    out: Annotated[Path, typer.Option(help="A .png, .svg or .pdf file.")] = Path("delta_p.pdf"),
    mode: Annotated[str, typer.Option(help="paper, strict, or both.")] = "both",
) -> None:
    """Draws ΔP by layer: solid for Q-anchored, dashed for A-anchored, a panel for each model."""
    if out.suffix not in _FORMATS:
        raise unknown("figure format", out.suffix or out.name, _FORMATS)
    if mode not in _MODES:
        raise unknown("mode", mode, _MODES)

    from anchorscope.run_folder.view import RunView
    from anchorscope.show import plot_delta_p, save_figure

    drawn = plot_delta_p([RunView.open(run) for run in runs], mode=mode)  # type: ignore[arg-type]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_figure(drawn, out.with_suffix(""), formats=(out.suffix[1:],))  # type: ignore[arg-type]
    except OSError as error:
        raise UserError(
            f"{out} cannot be written: {error.strerror}. Choose another --out."
        ) from error
    typer.echo(str(out))
