"""Commands that show a finished run: figure, view, export, and claims."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from rich.text import Text

from anchorscope.cli.options import FinishedRun, NewFile, NoOpen, SomeData, argument, flag, option
from anchorscope.cli.terminal import Terminal, echo, plain_table, quiet_libraries
from anchorscope.config import words
from anchorscope.errors import UserError, unknown
from anchorscope.records import MODES

if TYPE_CHECKING:
    from anchorscope.show.claims import Block

FORMATS = (".png", ".svg", ".pdf")
COLOURS = {
    "holds": "green", "fails": "red", "undecided": "yellow", "not shown": "dim",
    "not measured": "dim",
}  # fmt: skip


def figure(
    runs: Annotated[list[Path], argument("Run folders, one panel for each model.")],
    out: Annotated[Path, option("A .png, .svg or .pdf file.")] = Path("delta_p.pdf"),
    mode: Annotated[
        str | None, option("paper, strict, or both; default: both, or strict with --style.")
    ] = None,
    style: Annotated[
        str | None,
        option("paper (7 inches wide) or slides (16:9); the caption is printed, not drawn."),
    ] = None,
) -> None:
    """Draw ΔP by layer: solid for Q-anchored, dashed for A-anchored, a panel for each model."""
    if out.suffix not in FORMATS:
        raise unknown("figure format", out.suffix or out.name, FORMATS)
    mode = mode or ("both" if style is None else "strict")
    if mode not in (*MODES, "both"):
        raise unknown("mode", mode, (*MODES, "both"))
    from anchorscope.run_folder.view import RunView
    from anchorscope.show.canvas import save_figure
    from anchorscope.show.delta_p import STYLES, caption_of, plot_delta_p

    if style is not None and style not in STYLES:
        raise unknown("style", style, STYLES)
    chosen: Any = style and STYLES[style]
    views = [RunView.open(run) for run in runs]
    drawn = plot_delta_p(views, mode=mode, style=chosen)  # type: ignore[arg-type]
    options: dict[str, Any] = {"formats": (out.suffix[1:],)}
    options |= {"dpi": chosen.dpi} if chosen else {}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_figure(drawn, out.with_suffix(""), **options)
    except OSError as error:
        raise UserError(
            f"{out} cannot be written: {error.strerror}. Choose another --out."
        ) from error
    echo(str(out))
    if chosen is not None:
        echo(f"Caption: {caption_of(views, mode=mode)}")  # type: ignore[arg-type]


def view(
    runs: Annotated[list[Path], argument("A run folder, or two with the same questions.")],
    out: Annotated[
        Path | None, option("The page; without it, view.html in the first run folder.")
    ] = None,
    no_open: NoOpen = False,
) -> None:
    """Write a page to browse a finished run: figures, samples, tokens.

    It needs no model, no server and no network. Two runs are shown side by side, joined by
    question id. The address holds the current view, so a link reproduces it.
    """
    from anchorscope.run_folder.view import RunView
    from anchorscope.show.explore.page import write_view

    page = write_view([RunView.open(run) for run in runs], out)
    echo(f"View: {page}")
    if not no_open:
        open_in_browser(page.resolve().as_uri())


def open_in_browser(address: str) -> bool:
    """Open the address in a browser without waiting; False where there is no screen.

    Without a screen there is no browser, or one that would take over the terminal.
    """
    screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    if screen:
        subprocess.Popen(
            [sys.executable, "-m", "webbrowser", address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return screen


def export(
    run: FinishedRun,
    to: Annotated[str, option("numpy, hf (datasets), or probelab.")],
    out: Annotated[Path, option("The folder to write; it must be new or empty.")],
    passes: Annotated[
        str, option("Whose states, joined by commas: clean, knockout, neutral, ...")
    ] = "clean",
    data: SomeData = "",
) -> None:
    """Write the states at the probe position and their labels in another tool's format.

    numpy: <pass>.npy [sample, layer, width], which can be memory-mapped. hf: a folder for
    datasets.load_from_disk, a column for each layer. probelab: <pass>.h5 for its load_hdf5. The
    label is 1 for a wrong answer; abstentions are left out. It ends with the lines that load it.
    """
    from anchorscope.run_folder.export import FORMATS, Material, write
    from anchorscope.run_folder.view import RunView

    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    view = RunView.open(run, collected_ok=True)
    material = Material.select(view, passes=words(passes), datasets=words(data) or view.datasets)
    quiet_libraries()
    lines = write(material, to, out)
    samples, layers, width = material.shape
    echo(f"{samples} samples, {layers} layers, width {width}: {out}. To load them:")
    for line in lines:
        echo(f"  {line}")


def claims(
    runs: Annotated[list[Path], argument("Run folders; two models are compared.")],
    out: NewFile = None,
    no_statements: Annotated[
        bool, flag("--no-statements", "Leave out what each claim states.")
    ] = False,
) -> None:
    """Print the decision on each claim in both modes, with a column for each dataset.

    One run's table is its tables/claims.csv. With several runs it also compares the models, and
    the correction for many claims covers all of them.
    """
    from anchorscope.run_folder.view import RunView
    from anchorscope.show.claims import claims_of, grouped_claims, single_columns

    for run in runs:
        if sum(run.resolve() == other.resolve() for other in runs) > 1:
            raise UserError(f"'{run}' is given twice. Give each run folder once.")
    views = [RunView.open(run) for run in runs]
    table = claims_of(views)
    blocks = grouped_claims(table, single_columns(views))
    console = Terminal()
    for block in blocks:
        console.print(claim_table(block, models=len(views) > 1))
        console.print()
    if not no_statements:
        console.print(legend(blocks))
    if out is not None:
        table.to_csv(out, index=False)
        echo(str(out))


def claim_table(block: Block, *, models: bool) -> Table:
    """Make a table with a row for each claim and mode and a column for each dataset."""
    table = plain_table(block.title, "")
    for column in block.columns:
        lines = [column.dataset.replace(",", ", ") if block.kind == "datasets" else column.dataset]
        lines += column.model.split(", ") if models else []
        finding = block.finding(column)
        lines += [f"finding: {finding}"] if finding else []
        table.add_column(Text("\n".join(lines)), overflow="fold")
    for row in block.rows:
        for mode in MODES:
            texts = []
            for cell in map(row.cells.get, block.columns):
                text = Text()  # a claim need not be about every dataset
                if cell is not None:
                    decision = str(cell[f"{mode}_decision"])
                    text.append(decision, COLOURS.get(decision, ""))
                    text.append(f" {_number(float(cell[f'{mode}_value']))}")
                texts.append(text)
            table.add_row(Text(row.claim if mode == MODES[0] else "", style="bold"), mode, *texts)
    return table


def _number(value: float) -> str:
    """Format a number with about three significant digits."""
    if not math.isfinite(value):
        return ""
    text = f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
    return text.lstrip("-") if float(text) == 0 else text


def legend(blocks: Sequence[Block]) -> Table:
    """List what each claim states."""
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(style="dim")
    for block in blocks:
        if block.kind == "figure":  # each model has a figure of its own
            table.add_row("", Text(block.columns[0].model, style="italic"))
        for row in block.rows:
            table.add_row(Text(row.claim), Text(row.statement))
    return table
