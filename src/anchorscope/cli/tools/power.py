"""`anchorscope power`: the smallest effect that a run, or a larger one, would find."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from anchorscope.cli.terminal import Terminal, echo
from anchorscope.errors import UserError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from anchorscope.pathways.smallest_effect import Power, Smallest
    from anchorscope.records import Estimate

# What more questions do not change.
_OTHER = {
    "explained": "More questions do not change that: ask one kind of question alone, or mend what "
    "the groups are explained by.",
    "no-effect": "See first that the right tokens are cut: exact tokens are in samples.parquet.",
}


def power(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[
        str, typer.Option(help="Some of the run's datasets, joined by commas; default: all.")
    ] = "",
    worlds: Annotated[int, typer.Option(help="Planted worlds behind each number.")] = 40,
    out: Annotated[Path | None, typer.Option(help="Also write the table to this .csv.")] = None,
) -> None:
    """Says which effect a run would have found in 80 %, and one of two or four times its size.

    Two pathways are planted in the run's own readings: half of the samples lose a part of their
    belief, or a part of the samples loses all of it. It also says which layer's probe reads best,
    and whether that is better than chance.
    """
    if worlds < 10:
        raise UserError(f"--worlds is {worlds}. Accepted: 10 or more.")
    from anchorscope.cli.bar import Bar
    from anchorscope.pathways.smallest_effect import power_of_run
    from anchorscope.run_folder.view import RunView

    view = RunView.open(run)
    names = [name.strip() for name in data.split(",") if name.strip()] or view.datasets
    for name in names:
        if name not in view.datasets:
            raise unknown("dataset", name, view.datasets)
    powers = []
    _ = (
        view.findings,
        view.probes,
        view.answers,
    )  # what is wrong with them is said before anything else
    for name in names:
        with Bar() as bar:
            bar.note(f"{name}: planting worlds ...")
            powers.append(power_of_run(view, name, worlds=worlds))
    console = Terminal()
    console.print(_probes(powers))
    console.print(_smallest(powers))
    for power in powers:
        console.print(_sentences(power), markup=False)
    if out is not None:
        _rows(powers).to_csv(out, index=False)
        echo(str(out))


def _probes(powers: list[Power]) -> Table:
    """Which layer, and what its probe reads."""
    table = _table("dataset", "layer", "right", "wrong", "AUROC", "shuffled labels", "probe")
    for power in powers:
        probe = power.probe
        table.add_row(
            power.dataset,
            f"{probe.layer} of {probe.layers}",
            str(probe.right),
            str(probe.wrong),
            _interval(probe.auroc, ".2f"),
            f"{min(probe.shuffled):.2f} to {max(probe.shuffled):.2f}",
            "at chance" if probe.at_chance else "reads",
        )
    return table


def _smallest(powers: list[Power]) -> Table:
    """The smallest effects found in 80 %, by number of samples."""
    table = _table("dataset", "usable", "questions", "loss of a half", "its ΔP", "share of Q")
    for power in powers:
        for size in power.smallest:
            table.add_row(
                power.dataset,
                f"{size.n:,}",
                f"{_questions(power, size):,}",
                _interval(size.loss, ".0%"),
                _interval(size.delta_p, ".0f"),
                _interval(size.share, ".0%"),
            )
    return table


def _sentences(power: Power) -> str:
    """The same in words."""
    parts = [f"{power.dataset}: {power.finding} ({power.why})."]
    if not math.isnan(power.now["power_half"]):
        parts.append(
            f"Had half of the samples lost their belief, this run would have found two pathways "
            f"in {power.now['power_half']:.0%}; had a fifth, in {power.now['power_fifth']:.0%}."
        )
    parts += [_OTHER[power.finding]] if power.finding in _OTHER else []
    parts += [f"{power.probe.why.capitalize()}."] if power.probe.why else []
    return " ".join(parts)


def _questions(power: Power, size: Smallest) -> int:
    """The number of questions to ask for so many usable samples, at this run's rate."""
    return round(size.n * power.questions / power.n)


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _interval(estimate: Estimate, form: str) -> str:
    if math.isnan(estimate.value):
        return "beyond reach"
    low, high = (
        f"{end:{form}}" if math.isfinite(end) else "more" for end in (estimate.low, estimate.high)
    )
    return f"{estimate.value:{form}} ({low} to {high})"


def _rows(powers: list[Power]) -> pd.DataFrame:
    """One row for each dataset and number of samples, every number with its interval."""
    import pandas as pd

    from anchorscope.pathways.tables import estimate_columns

    return pd.DataFrame(
        [
            {
                "dataset": power.dataset,
                "finding": power.finding,
                "usable": size.n,
                "questions": _questions(power, size),
                **estimate_columns("loss", size.loss),
                **estimate_columns("delta_p", size.delta_p),
                **estimate_columns("share", size.share),
                **power.now,
                "layer": power.probe.layer,
                "right": power.probe.right,
                "wrong": power.probe.wrong,
                **estimate_columns("auroc", power.probe.auroc),
                "shuffled_auroc": sum(power.probe.shuffled) / len(power.probe.shuffled),
                "at_chance": power.probe.at_chance,
            }
            for power in powers
            for size in power.smallest
        ]
    )
