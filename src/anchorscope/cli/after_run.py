"""Commands that check a finished run: verify, power, and verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorscope.cli.options import FinishedRun, NewFile, SomeData, argument, flag, option
from anchorscope.cli.terminal import Bar, Terminal, echo, quiet_libraries
from anchorscope.config import words
from anchorscope.errors import UserError, unknown

if TYPE_CHECKING:
    from anchorscope.run_folder.manifest import Checked


def verify(
    folder: Annotated[Path, argument("A run, a detector's folder, or a study.")],
    deep: Annotated[
        bool, flag("--deep", "Compute every table again from the stored answers and states.")
    ] = False,
) -> None:
    """Verify a run, a detector or a study: checksums, format and versions, one line each.

    Exit code 1 where something is wrong; each such line says what to do. No model is loaded.
    """
    console = Terminal(soft_wrap=True)
    seen, wrong = 0, 0
    for checked in _checks(folder, deep=deep):
        seen, wrong = seen + 1, wrong + (not checked.ok)
        console.print("[green]ok   [/] " if checked.ok else "[red]WRONG[/] ", end="")
        console.print(str(checked), markup=False)
    result = f"{wrong} of {seen} wrong" if wrong else f"{seen} checks, all well"
    console.print(result, markup=False)
    if wrong:
        raise typer.Exit(1)


def _checks(folder: Path, *, deep: bool) -> Iterator[Checked]:
    """Yield the checks of a run, of a detector, or of every run of a study."""
    from anchorscope.run_folder.manifest import MARKERS, RUN

    folder = folder.expanduser()
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}'. Give a run's or a detector's folder.")
    if (folder / RUN).exists() or (folder / MARKERS).is_dir():
        yield from _checks_of_run(folder, deep=deep)
        return
    if (folder / "detector.json").exists() or (folder / "detector.safetensors").exists():
        from anchorscope.detect.saved import verify_detector

        yield from verify_detector(folder, deep=deep)
        return
    runs = sorted(file.parent for file in folder.glob(f"*/{RUN}"))
    if not runs:
        raise UserError(
            f"'{folder}' holds no run.json and no detector.json. Give what --out named."
        )
    for run in runs:
        for checked in _checks_of_run(run, deep=deep):
            yield replace(checked, name=f"{run.name}/{checked.name}")


def _checks_of_run(folder: Path, *, deep: bool) -> Iterator[Checked]:
    from anchorscope.run_folder.manifest import verify_run

    wrong = False
    for checked in verify_run(folder):
        wrong = wrong or not checked.ok
        yield checked
    if deep and not wrong:  # from damaged files nothing would be learnt
        from anchorscope.pipeline.analyse import recomputed

        quiet_libraries()
        with Bar() as bar:
            results = list(recomputed(folder, progress=bar))
        yield from results


def power(
    run: FinishedRun,
    data: SomeData = "",
    worlds: Annotated[int, option("Planted worlds behind each number.", min=10)] = 40,
    out: NewFile = None,
) -> None:
    """Estimate the smallest effect that a run, or one 2 or 4 times its size, finds in 80 %.

    Two pathways are planted in the run's own readings: half of the samples lose a part of their
    belief, or a part of the samples loses all of it. It also prints which layer's probe reads best,
    and whether that is better than chance.
    """
    from anchorscope.config import Config
    from anchorscope.pathways.power import power_of_run
    from anchorscope.run_folder.view import RunView
    from anchorscope.show.sentences import EFFECTS, power_sentences, power_table

    view = RunView.open(run)
    Config.restore(dict(view.config))  # one of another kind is refused before any work
    names = words(data) or view.datasets
    for name in names:
        if name not in view.datasets:
            raise unknown("dataset", name, view.datasets)
    _ = view.findings, view.probes, view.answers  # an error in them comes before any work
    powers = []
    for name in names:
        with Bar() as bar:
            bar.note(f"{name}: planting worlds ...")
            powers.append(power_of_run(view, name, worlds=worlds))
    table = power_table(powers)
    shown = table[["dataset", "usable", "questions", *EFFECTS]].round(2)
    echo(shown.to_string(index=False, na_rep="beyond reach"))
    for one in powers:
        echo(power_sentences(one))
    if out is not None:
        table.to_csv(out, index=False)
        echo(str(out))


def verdicts(
    run: FinishedRun,
    out: Annotated[Path, option("The .csv file to write.")] = Path("doubtful.csv"),
    most: Annotated[int, option("At most so many rows, the most doubtful ones.", min=1)] = 100,
) -> None:
    """Write the answers whose verdict may be wrong, for you to check and correct.

    Near spellings, parts of an accepted answer, accepted answers among other words, numbers, words
    of abstention. Correct the columns right and abstained (1 or 0); --verdicts of `anchorscope run`
    takes the file as it is, and --reuse takes over the run's answers and states.
    """
    if out.suffix != ".csv":
        raise UserError(f"--out is '{out}'. Accepted: a .csv file.")
    from anchorscope.answers.verdicts import doubt_table, doubtful
    from anchorscope.config import Config
    from anchorscope.pipeline.request import command_of
    from anchorscope.run_folder.view import RunView

    view = RunView.open(run)
    samples = [sample for sample in view.answers if sample.question.answers]
    if not samples:
        raise UserError(f"'{run}' has no accepted answers to compare with, only given verdicts.")
    pairs = doubtful(samples)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        doubt_table(pairs[:most]).to_csv(out, index=False)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}.") from error
    echo(
        f"{len(pairs)} of {len(samples)} verdicts are in doubt; {len(pairs[:most])} of them are in "
        f"{out}, "
        "the most doubtful first. Correct the columns right and abstained there, then:"
    )
    config = Config.restore({**view.config, "verdicts": str(out), "reuse": str(view.path)})
    corrected = view.path.with_name(f"{view.path.name}-corrected")
    echo(f"  {command_of(config, corrected)}")
