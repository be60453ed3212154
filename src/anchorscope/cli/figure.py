"""`anchorscope figure`: the ΔP figure of one run or several, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from anchorscope.cli.terminal import echo
from anchorscope.errors import UserError, unknown

_FORMATS = (".png", ".svg", ".pdf")
_MODES = ("paper", "strict", "both")


def figure(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, one panel for each model.")],
    out: Annotated[Path, typer.Option(help="A .png, .svg or .pdf file.")] = Path("delta_p.pdf"),
    mode: Annotated[
        str | None,
        typer.Option(help="paper, strict, or both; default: both, or strict with --style."),
    ] = None,
    style: Annotated[
        str | None,
        typer.Option(
            help="paper (7 inches wide) or slides (16:9); the caption is printed, not drawn."
        ),
    ] = None,
) -> None:
    """Draws ΔP by layer: solid for Q-anchored, dashed for A-anchored, a panel for each model."""
    if out.suffix not in _FORMATS:
        raise unknown("figure format", out.suffix or out.name, _FORMATS)
    mode = mode or ("both" if style is None else "strict")
    if mode not in _MODES:
        raise unknown("mode", mode, _MODES)
    from anchorscope.run_folder.view import RunView
    from anchorscope.show import plot_delta_p
    from anchorscope.show.delta_p import STYLES, caption_of

    if style is not None and style not in STYLES:
        raise unknown("style", style, STYLES)
    chosen = None if style is None else STYLES[style]
    views, asked = [RunView.open(run) for run in runs], {"mode": mode}
    _save(plot_delta_p(views, **asked, style=chosen), out, chosen)  # type: ignore[arg-type]
    echo(str(out))
    if chosen is not None:
        echo(f"Caption: {caption_of(views, **asked)}")  # type: ignore[arg-type]


def _save(drawn: Any, out: Path, style: Any) -> None:
    from anchorscope.show import save_figure

    sharpness = {} if style is None else {"dpi": style.dpi}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_figure(drawn, out.with_suffix(""), formats=(out.suffix[1:],), **sharpness)  # type: ignore[arg-type]
    except OSError as error:
        raise UserError(
            f"{out} cannot be written: {error.strerror}. Choose another --out."
        ) from error
