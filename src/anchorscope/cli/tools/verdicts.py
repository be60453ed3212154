"""`anchorscope verdicts`: the verdicts that are worth reading, in a file to correct."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorscope.cli.terminal import echo
from anchorscope.errors import UserError

if TYPE_CHECKING:
    from anchorscope.answers.doubtful import Doubt
    from anchorscope.records import Sample
    from anchorscope.run_folder.view import RunView

COLUMNS = ("id", "question", "answer", "accepted", "right", "abstained", "why")


def verdicts(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    out: Annotated[Path, typer.Option(help="The .csv file to write.")] = Path("doubtful.csv"),
    most: Annotated[int, typer.Option(help="At most so many rows, the most doubtful ones.")] = 100,
) -> None:
    """Writes the answers whose verdict may be wrong, for you to check and correct.

    Near spellings, parts of an accepted answer, accepted answers among other words, numbers, words
    of abstention. Correct the columns right and abstained (1 or 0); --verdicts of `anchorscope run`
    takes the file as it is, and --reuse takes over the run's answers and states.
    """
    if out.suffix != ".csv":
        raise UserError(f"--out is '{out}'. Accepted: a .csv file.")
    if most < 1:
        raise UserError(f"--most is {most}. Accepted: 1 or more.")
    from anchorscope.answers.doubtful import doubtful
    from anchorscope.run_folder.view import RunView

    view = RunView.open(run)
    samples = [sample for sample in view.answers if sample.question.answers]
    if not samples:
        raise UserError(f"'{run}' has no accepted answers to compare with, only given verdicts.")
    everything = doubtful(samples)
    _write(out, everything[:most])
    echo(
        f"{len(everything)} of {len(samples)} verdicts are in doubt; "
        f"{min(most, len(everything))} of them are in {out}, the most doubtful first. Correct the "
        "columns right and abstained there, then:"
    )
    echo(f"  {_again(view, out)}")


def _write(out: Path, pairs: Sequence[tuple[Sample, Doubt]]) -> None:
    import pandas as pd

    rows = [_row(sample, doubt) for sample, doubt in pairs]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(out, index=False)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}.") from error


def _row(sample: Sample, doubt: Doubt) -> tuple[Any, ...]:
    return (
        sample.id,
        _text(sample.question.text),
        _text(sample.answer.text),
        _text(" | ".join(sample.question.answers)),
        int(sample.verdict == "right"),
        int(sample.verdict == "abstain"),
        _text(doubt.why),
    )


def _text(text: str) -> str:
    """The text for a spreadsheet, which would compute what begins like a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t") else text


def _again(view: RunView, out: Path) -> str:
    """The command that reads this run again with the corrected verdicts."""
    from anchorscope.config import Config
    from anchorscope.pipeline.request import command_of

    config = Config.restore({**view.config, "verdicts": str(out), "reuse": str(view.path)})
    folder = view.path.with_name(f"{view.path.name}-corrected")
    return command_of(config, folder)
