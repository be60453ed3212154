"""Commands that check a finished run: verify, power, and verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorscope.cli.options import FinishedRun, SomeData, words
from anchorscope.cli.terminal import Bar, Terminal, echo, plain_table, quiet_libraries
from anchorscope.errors import UserError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from anchorscope.pathways.power import Power
    from anchorscope.records import Estimate
    from anchorscope.run_folder.manifest import Checked

# What more questions do not change.
ADVICE = {
    "explained": "More questions do not change that: ask one kind of question alone, or mend what "
    "the groups are explained by.",
    "no-effect": "See first that the right tokens are cut: exact tokens are in samples.parquet.",
}


def verify(
    folder: Annotated[Path, typer.Argument(help="A run, a detector's folder, or a study.")],
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Compute every table again from the stored answers and states."
        ),
    ] = False,
) -> None:
    """Compare every file with its checksum, format and versions, one line each.

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
    worlds: Annotated[int, typer.Option(help="Planted worlds behind each number.", min=10)] = 40,
    out: Annotated[Path | None, typer.Option(help="Also write the table to this .csv.")] = None,
) -> None:
    """Say which effect a run would have found in 80 %, and one of two or four times its size.

    Two pathways are planted in the run's own readings: half of the samples lose a part of their
    belief, or a part of the samples loses all of it. It also says which layer's probe reads best,
    and whether that is better than chance.
    """
    from anchorscope.config import Config
    from anchorscope.pathways.power import power_of_run
    from anchorscope.run_folder.view import RunView

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
    effects = plain_table(
        "dataset", "usable", "questions", "loss of a half", "its ΔP", "share of Q"
    )
    table = _power_table(powers)
    sizes = [(one.dataset, size) for one in powers for size in one.smallest]
    for (dataset, size), questions in zip(sizes, table["questions"], strict=True):
        effects.add_row(
            dataset, f"{size.n:,}", f"{questions:,}", _interval(size.loss, ".0%"),
            _interval(size.delta_p, ".0f"), _interval(size.share, ".0%"),
        )  # fmt: skip
    console = Terminal()
    console.print(effects)
    for one in powers:
        console.print(_sentences(one), markup=False)
    if out is not None:
        table.to_csv(out, index=False)
        echo(str(out))


def _sentences(power: Power) -> str:
    """Describe the power of one dataset in sentences."""
    parts = [f"{power.dataset}: {power.finding} ({power.why})."]
    if not math.isnan(power.now["power_half"]):
        parts.append(
            f"Had half of the samples lost their belief, this run would have found two pathways "
            f"in {power.now['power_half']:.0%}; had a fifth, in {power.now['power_fifth']:.0%}."
        )
    parts += [ADVICE[power.finding]] if power.finding in ADVICE else []
    probe = power.probe
    parts.append(
        f"The probe of layer {probe.layer} of {probe.layers} reads {probe.right} right and "
        f"{probe.wrong} wrong answers with AUROC {_interval(probe.auroc, '.2f')}, shuffled labels "
        f"with {min(probe.shuffled):.2f} to {max(probe.shuffled):.2f}."
    )
    parts += [f"{probe.why.capitalize()}."] if probe.why else []
    return " ".join(parts)


def _interval(estimate: Estimate, form: str) -> str:
    if math.isnan(estimate.value):
        return "beyond reach"
    ends = estimate.low, estimate.high
    low, high = (f"{end:{form}}" if math.isfinite(end) else "more" for end in ends)
    return f"{estimate.value:{form}} ({low} to {high})"


def _power_table(powers: list[Power]) -> pd.DataFrame:
    """Tabulate the power by dataset and number of samples, with intervals."""
    import pandas as pd

    rows = []
    for one in powers:
        for size in one.smallest:
            row = {
                "dataset": one.dataset,
                "finding": one.finding,
                "usable": size.n,
                # To get so many usable samples, at this run's rate.
                "questions": round(size.n * one.questions / one.n),
            }
            estimates = {"loss": size.loss, "delta_p": size.delta_p, "share": size.share}
            for name, estimate in estimates.items():
                row |= _with_ends(name, estimate)
            probe = one.probe
            row |= {**one.now, "layer": probe.layer, "right": probe.right, "wrong": probe.wrong}
            row |= _with_ends("auroc", probe.auroc)
            row["shuffled_auroc"] = sum(probe.shuffled) / len(probe.shuffled)
            rows.append(row | {"at_chance": probe.at_chance})
    return pd.DataFrame(rows)


def _with_ends(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def verdicts(
    run: FinishedRun,
    out: Annotated[Path, typer.Option(help="The .csv file to write.")] = Path("doubtful.csv"),
    most: Annotated[
        int, typer.Option(help="At most so many rows, the most doubtful ones.", min=1)
    ] = 100,
) -> None:
    """Write the answers whose verdict may be wrong, for you to check and correct.

    Near spellings, parts of an accepted answer, accepted answers among other words, numbers, words
    of abstention. Correct the columns right and abstained (1 or 0); --verdicts of `anchorscope run`
    takes the file as it is, and --reuse takes over the run's answers and states.
    """
    if out.suffix != ".csv":
        raise UserError(f"--out is '{out}'. Accepted: a .csv file.")
    import pandas as pd

    from anchorscope.answers.verdicts import doubtful
    from anchorscope.config import Config
    from anchorscope.pipeline.request import command_of
    from anchorscope.run_folder.view import RunView

    view = RunView.open(run)
    samples = [sample for sample in view.answers if sample.question.answers]
    if not samples:
        raise UserError(f"'{run}' has no accepted answers to compare with, only given verdicts.")
    pairs = doubtful(samples)
    rows = [
        {
            "id": sample.id,
            "question": _safe_cell(sample.question.text),
            "answer": _safe_cell(sample.answer.text),
            "accepted": _safe_cell(" | ".join(sample.question.answers)),
            "right": int(sample.verdict == "right"),
            "abstained": int(sample.verdict == "abstain"),
            "why": _safe_cell(doubt.why),
        }
        for sample, doubt in pairs[:most]
    ]
    columns = ["id", "question", "answer", "accepted", "right", "abstained", "why"]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows, columns=columns).to_csv(out, index=False)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}.") from error
    echo(
        f"{len(pairs)} of {len(samples)} verdicts are in doubt; {len(rows)} of them are in {out}, "
        "the most doubtful first. Correct the columns right and abstained there, then:"
    )
    config = Config.restore({**view.config, "verdicts": str(out), "reuse": str(view.path)})
    corrected = view.path.with_name(f"{view.path.name}-corrected")
    echo(f"  {command_of(config, corrected)}")


def _safe_cell(text: str) -> str:
    """Quote text that a spreadsheet would take for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t") else text
