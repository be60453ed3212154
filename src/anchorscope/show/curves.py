"""Curves as data, and the colours, names and order that every figure shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from anchorscope.records import Mode
from anchorscope.run_folder.view import RunView, records, values, where

# One colour a dataset, distinguishable for readers who see no red or green (Okabe and Ito's, the
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
Columns = tuple[str, str, str]  # of a value and the ends of its interval
DELTA_P: Columns = ("delta_p", "delta_p_low", "delta_p_high")
_AUROC: Columns = ("auroc", "auroc_low", "auroc_high")
_FLIPS: Columns = ("flip_rate", "flip_rate_low", "flip_rate_high")
NULL_LABEL = "Q under one mechanism"


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
        finite = np.isfinite(self.value)
        padded = np.concatenate([[False], finite, [False]])
        return finite & ~padded[:-2] & ~padded[2:]

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
    table: pd.DataFrame,
    titles: Mapping[str, str],
    columns: Columns = DELTA_P,
    *,
    factor: float = 1,
    control: bool = False,
) -> list[Series]:
    """Q and A of each dataset that the table has rows of, in legend order; pale for a control."""
    series: list[Series] = []
    for position, (name, title) in enumerate(titles.items()):
        for pathway in ("Q", "A"):
            rows = where(table, dataset=name, pathway=pathway)
            label, color = f"{pathway}-Anchored ({title})", color_of(position)
            if control:
                label, color = f"{pathway}, neutral tokens ({title})", pale(color)
            if len(rows):
                dashed = pathway == "A"
                drawn = curve(rows, columns, label=label, color=color, dashed=dashed, factor=factor)
                series.append(drawn)
    return series


def curve(
    rows: pd.DataFrame,
    columns: Columns,
    *,
    label: str,
    color: str,
    dashed: bool = False,
    n: str = "n",
    factor: float = 1,
) -> Series:
    """The columns by layer, times `factor`; the interval is NaN where the table has none."""
    rows = rows.sort_values("layer")

    def numbers(name: str) -> np.ndarray:
        if name not in rows.columns:
            return np.full(len(rows), math.nan)
        return values(rows, name).to_numpy(dtype=float)

    value, low, high = (factor * numbers(name) for name in columns)
    return Series(
        label=label,
        color=color,
        dashed=dashed,
        layer=values(rows, "layer").to_numpy(dtype=int),
        value=value,
        low=low,
        high=high,
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
        series.append(curve(rows, _AUROC, label=title, color=color, n="n_test"))
        before = run.evidence.get("question_probe")
        if before is not None:
            named = f"{title}, question only"
            rows = where(before, dataset=name)
            series.append(curve(rows, _AUROC, label=named, color=color, dashed=True))
    return series


def dashed_note(runs: Sequence[RunView]) -> str:
    """What the dashed curves are; empty where there are none."""
    if not any("question_probe" in run.evidence for run in runs):
        return ""
    return " Dashed: a probe at the last question token, before any answer."


def intervention_series(run: RunView, dataset: str) -> list[Series]:
    """Flip rate in percent of each intervention that the run made on the dataset."""
    rows = where(run.controls, dataset=dataset)
    parts = {name: where(rows, intervention=name) for name in intervention_names(run.controls)}
    return [
        curve(parts[name], _FLIPS, label=label, color=color, factor=100)
        for name, (label, color) in intervention_names(run.controls).items()
        if len(parts[name])
    ]


def has_band(run: RunView) -> bool:
    """Whether the null's band belongs to the groups drawn: it is made for each layer's own."""
    return run.has_strict and run.config.get("grouping", "per-layer") == "per-layer"


def null_series(runs: Sequence[RunView], titles: Mapping[str, str], mode: Mode) -> list[Series]:
    """For each dataset the band of Q under one mechanism: A's curve plus the null's gap, by layer.

    A Q curve inside its band shows no second pathway. Runs without the evidence give none.
    """
    found = []
    for position, (name, title) in enumerate(titles.items()):
        for run in runs:
            if name in run.titles and has_band(run):
                found.append(_null_series(run, name, title, position, mode))
    return [series for series in found if np.isfinite(series.low).any()]


def _null_series(run: RunView, dataset: str, title: str, position: int, mode: Mode) -> Series:
    null = where(run.strict, dataset=dataset).sort_values("layer")
    a_rows = where(run.layers, dataset=dataset, mode=mode, pathway="A")
    a = dict(zip(values(a_rows, "layer"), values(a_rows, "delta_p"), strict=True))
    base = np.array([a.get(layer, np.nan) for layer in values(null, "layer")], dtype=float)
    low, high = (values(null, f"{mode}_null_{end}").to_numpy(float) for end in ("low", "high"))
    return Series(
        label=f"{NULL_LABEL} ({title})",
        color=color_of(position),
        dashed=False,
        layer=values(null, "layer").to_numpy(dtype=int),
        value=base + (low + high) / 2,
        low=base + low,
        high=base + high,
        n=values(null, "n").to_numpy(dtype=int),
    )


def collapse_notes(runs: Sequence[RunView], titles: Mapping[str, str]) -> list[str]:
    """A line for each dataset whose pathway is, at some layers, only the predicted class."""
    notes = []
    for run in runs:
        if not run.has_strict:
            continue
        for name in run.titles:
            layers = collapsed_layers(run.strict, name)
            if layers:
                title = titles.get(name, name)
                word = "layer" if len(layers) == 1 else "layers"
                notes.append(f"{title}: pathway = predicted class at {word} {_spans(layers)}")
    return notes


def collapsed_layers(strict: pd.DataFrame, dataset: str) -> list[int]:
    """The layers at which ŷ explains nearly all of the grouping."""
    rows = records(where(strict, dataset=dataset))
    return sorted(int(row["layer"]) for row in rows if str(row["collapse"]) == "True")


def _spans(layers: Sequence[int]) -> str:
    """'1, 4–6' for 1, 4, 5, 6."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and layer == parts[-1][-1] + 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ", ".join(f"{p[0]}–{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
