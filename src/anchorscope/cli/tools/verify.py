"""`anchorscope verify`: is every file of a run or a detector what it was when it was written?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorscope.cli.terminal import Terminal
from anchorscope.errors import UserError

if TYPE_CHECKING:
    from anchorscope.run_folder.verify import Checked


def verify(
    folder: Annotated[Path, typer.Argument(help="A run, a detector's folder, or a study.")],
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Compute every table again from the stored answers and states."
        ),
    ] = False,
    badge: Annotated[
        Path | None, typer.Option(help="Write an SVG badge of the result, for a README.")
    ] = None,
) -> None:
    """Compares every file with its checksum, format and versions, one line each.

    Exit code 1 where something is wrong; each such line says what to do. No model is loaded.
    """
    console = Terminal(soft_wrap=True)
    seen, wrong = 0, 0
    for checked in _checks(folder, deep=deep):
        seen, wrong = seen + 1, wrong + (not checked.ok)
        console.print("[green]ok   [/] " if checked.ok else "[red]WRONG[/] ", end="")
        console.print(str(checked), markup=False)
    said = f"{wrong} of {seen} wrong" if wrong else f"{seen} checks, all well"
    console.print(said, markup=False)
    if badge is not None:
        _write_badge(badge, seen, wrong, deep=deep)
    if wrong:
        raise typer.Exit(1)


def _checks(folder: Path, *, deep: bool) -> Iterator[Checked]:
    """What is looked at, by the kind of folder."""
    from anchorscope.run_folder.info import RUN
    from anchorscope.run_folder.listing import MARKERS

    folder = folder.expanduser()
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}'. Give a run's or a detector's folder.")
    if (folder / RUN).exists() or (folder / MARKERS).is_dir():
        return _of_run(folder, deep=deep)
    if (folder / "detector.json").exists() or (folder / "detector.safetensors").exists():
        from anchorscope.detect.deployed.verify import verify_detector

        return verify_detector(folder, deep=deep)
    runs = sorted(file.parent for file in folder.glob(f"*/{RUN}"))
    if not runs:
        raise UserError(
            f"'{folder}' holds no run.json and no detector.json. Give what --out named."
        )
    return chain.from_iterable(_named(run, deep=deep) for run in runs)


def _named(run: Path, *, deep: bool) -> Iterator[Checked]:
    """The checks of one run of a study, under its folder's name."""
    from dataclasses import replace

    for checked in _of_run(run, deep=deep):
        yield replace(checked, name=f"{run.name}/{checked.name}")


def _of_run(folder: Path, *, deep: bool) -> Iterator[Checked]:
    from anchorscope.run_folder.verify import verify_run

    wrong = False
    for checked in verify_run(folder):
        wrong = wrong or not checked.ok
        yield checked
    if deep and not wrong:  # from damaged files nothing would be learnt
        from anchorscope.cli.bar import Bar, quiet_libraries
        from anchorscope.pipeline.recompute import recomputed

        quiet_libraries()
        with Bar() as bar:
            results = list(recomputed(folder, progress=bar))
        yield from results


def _write_badge(file: Path, seen: int, wrong: int, *, deep: bool) -> None:
    from anchorscope.run_folder.whole import put_whole
    from anchorscope.show.badge import badge

    how = "recomputed" if deep else "verified"
    said = f"{wrong} of {seen} checks failed" if wrong else f"{how}, {seen} checks"
    put_whole(file, badge(said, ok=not wrong))
