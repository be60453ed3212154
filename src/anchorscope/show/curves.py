"""Curves as data, and the colours, names and order that every figure shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from anchorscope.records import Mode
from anchorscope.run_folder.view import RunView, values, where

# One colour a dataset, told apart by readers who see no red or green (Okabe and Ito's, the
# darkest first), then darker tones of them for a seventh to a twelfth dataset.
PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#00446b", "#803800", "#005f45", "#7a4964", "#8a5f00", "#336c8c"),
)
CONTROL = "#b8b8b8"
INTERVENTIONS: Mapping[str, tuple[str, str]] = {  # name -> (what a reader calls it, colour)
    "knockout": ("exact question tokens", "#1f77b4"),
    "question": ("all question tokens", "#9467bd"),
    "answer-only": ("answer without question", "#2ca02c"),
    "content": ("other content words", "#bcbd22"),
    "neutral": ("neutral tokens", "#8f8f8f"),
    "retest": ("another prompt", "#17becf"),
    "retest-knockout": ("exact question tokens, another prompt", "#8c564b"),
}
_OTHER = ("#bcbd22", "#17becf", "#8c564b")  # for an intervention without a name of its own
# Below this many samples a bootstrap interval is too narrow to be believed; such points
# are drawn hollow and such numbers are said to be few.
FEW = 10


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve: a group of one dataset, with its interval and counts, by layer."""

    label: str
    color: str
    dashed: bool
    layer: np.ndarray  # [layer]
    value: np.ndarray  # [layer], NaN where the group is empty
    low: np.ndarray
    high: np.ndarray
    n: np.ndarray

    @property
    def alone(self) -> np.ndarray:
        """Which points have no neighbour to draw a line to."""
        known = np.isfinite(self.value)
        padded = np.concatenate([[False], known, [False]])
        return known & ~padded[:-2] & ~padded[2:]

    @property
    def few(self) -> np.ndarray:
        return np.isfinite(self.value) & (self.n < FEW)


def color_of(position: int) -> str:
    """The colour of the dataset at `position` (from 0); A is dashed, its control pale."""
    return PALETTE[position % len(PALETTE)]


def pale(color: str) -> str:
    """The tone of a dataset's control: the colour, two thirds of the way to white."""
    return "#" + "".join(f"{(int(color[i : i + 2], 16) + 2 * 255) // 3:02x}" for i in (1, 3, 5))


def intervention_names(table: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Intervention -> (name, colour) of those in controls.csv, the known ones first."""
    interventions = list(dict.fromkeys(values(table, "intervention")))
    named = {name: style for name, style in INTERVENTIONS.items() if name in interventions}
    others = [name for name in interventions if name not in INTERVENTIONS]
    return named | {name: (name, _OTHER[i % len(_OTHER)]) for i, name in enumerate(others)}


def all_titles(runs: Sequence[RunView]) -> dict[str, str]:
    """Dataset short name -> title over several runs, in order of first appearance."""
    titles: dict[str, str] = {}
    for run in runs:
        for name, title in run.titles.items():
            titles.setdefault(name, title)
    return titles


def pathway_series(
    table: pd.DataFrame, titles: Mapping[str, str], mode: Mode, *, control: bool = False
) -> list[Series]:
    """Q and A of each dataset, in legend order, from rows of layers.csv or control_layers.csv."""
    series: list[Series] = []
    for position, (name, title) in enumerate(titles.items()):
        for pathway in ("Q", "A"):
            rows = where(table, dataset=name, mode=mode, pathway=pathway)
            label, color = f"{pathway}-Anchored ({title})", color_of(position)
            if control:
                label, color = f"{pathway}, neutral tokens ({title})", pale(color)
            dashed = pathway == "A"
            series.append(curve(rows, "delta_p", label=label, color=color, dashed=dashed))
    return series


def curve(
    rows: pd.DataFrame, column: str, *, label: str, color: str, dashed: bool = False, n: str = "n"
) -> Series:
    """The column by layer; its interval is NaN where the table has none."""
    rows = rows.sort_values("layer")

    def numbers(name: str) -> np.ndarray:
        if name not in rows.columns:
            return np.full(len(rows), math.nan)
        return values(rows, name).to_numpy(dtype=float)

    return Series(
        label=label,
        color=color,
        dashed=dashed,
        layer=values(rows, "layer").to_numpy(dtype=int),
        value=numbers(column),
        low=numbers(f"{column}_low"),
        high=numbers(f"{column}_high"),
        n=np.nan_to_num(numbers(n)).astype(int),
    )


def auroc_series(run: RunView, titles: Mapping[str, str]) -> list[Series]:
    """A curve for each dataset of the run; dashed, the question-only probe where it was trained."""
    series = []
    for position, (name, title) in enumerate(titles.items()):
        if name not in run.titles:
            continue
        color = color_of(position)
        rows = where(run.probes, dataset=name)
        series.append(curve(rows, "auroc", label=title, color=color, n="n_test"))
        before = run.evidence.get("question_probe")
        if before is not None:
            named = f"{title}, question only"
            rows = where(before, dataset=name)
            series.append(curve(rows, "auroc", label=named, color=color, dashed=True))
    return series


def dashed_note(runs: Sequence[RunView]) -> str:
    """What the dashed curves are; empty where there are none."""
    if not any("question_probe" in run.evidence for run in runs):
        return ""
    return " Dashed: a probe at the last question token, before any answer."


def intervention_series(run: RunView, dataset: str) -> list[Series]:
    """Flip rate in percent of each intervention that the run made on the dataset."""
    rows = where(run.controls, dataset=dataset)
    rates = ("flip_rate", "flip_rate_low", "flip_rate_high")
    rows = rows.assign(**{rate: 100 * values(rows, rate) for rate in rates})
    series = []
    for name, (label, color) in intervention_names(run.controls).items():
        part = where(rows, intervention=name)
        if len(part):
            series.append(curve(part, "flip_rate", label=label, color=color))
    return series
