"""The other evidence as curves: what is drawn, in figures and in the report alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from anchorscope.show.load import RunView, values, where
from anchorscope.show.style import MODES, RANDOM, Series, color_of, curve

Unit = Literal["points", "percent", "share"]
PATCHES: Mapping[str, str] = {
    "patch-matched": "tokens of a matched subject",
    "patch-random": "tokens of a random subject",
    "patch-other": "other tokens of the question",
    "patch-self": "its own tokens",
}
MEASURES: Mapping[str, tuple[str, str, float]] = {  # name -> title, y axis, factor
    "accuracy": ("Accuracy", "Answered right (%)", 100),
    "abstention": ("Abstention", "Abstained (%)", 100),
    "popularity": ("Popularity", "Popularity (powers of ten)", 1),
}
PREDICTORS: Mapping[str, tuple[str, str, bool]] = {  # name -> label, colour, dashed
    "state": ("Clean state", "#1f77b4", False),
    "question-only": ("State at the last question token", "#2ca02c", False),
    "signed-logit": ("Signed logit alone", "#d62728", True),
    "margin": ("Margin alone", "#9467bd", True),
    "simple": ("Logit, margin, popularity, length", "#7f7f7f", True),
}
OTHER = "Other tokens, all samples (control)"
READINGS = (  # mode, subset, what a reader calls it
    ("paper", "all", "Paper mode, all"),
    ("strict", "predicted-right", "Strict, predicted right"),
    ("strict", "predicted-wrong", "Strict, predicted wrong"),
)


@dataclass(frozen=True, kw_only=True)
class View:
    """The curves of one panel."""

    row: str  # named beside the panel's row
    column: str  # named above the panel
    y: str
    series: Sequence[Series]
    note: str = ""  # written into the panel

    @property
    def label(self) -> str:
        """On the switch of the report."""
        return ", ".join(part for part in (self.column, self.row) if part)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One piece of evidence."""

    name: str  # of its figure
    views: Sequence[View]
    caption: str
    unit: Unit = "points"
    zero: float = 0.0  # what nothing would give
    x: str = "Layer"
    share_y: bool = True


def main_patch(table: pd.DataFrame) -> str:
    """The patch that is drawn: with a matched donor, where there is one."""
    return next(name for name in PATCHES if name in set(values(table, "intervention")))


def patching(run: RunView) -> Piece:
    """Flip rate by layer, a view per mode."""
    table = run.evidence["patching"]
    patch, views = main_patch(table), []
    columns = ("flip_rate", "flip_low", "flip_high")
    for mode in MODES:
        rows = where(table, mode=mode, subset="all")
        series = _pathways(run, where(rows, intervention=patch), columns, factor=100)
        control = where(rows, intervention="patch-other", pathway="all")
        for name in run.titles:
            part = where(control, dataset=name)
            if len(part):
                series.append(_curve(part, columns, label=OTHER, color=RANDOM, factor=100))
        view = View(row="", column=f"{mode.capitalize()} mode",
                    y="Predictions that flip (%)", series=series)  # fmt: skip
        views.append(view)
    caption = (
        f"The exact question tokens are replaced by the {PATCHES[patch]}. Groups are those of the "
        "knockout. Grey: as many other tokens of the question replaced, all samples."
    )
    return Piece(name="patching", views=views, caption=caption, unit="percent")


def answer_only(run: RunView) -> Piece:
    """ΔP without the question, a view per mode."""
    table = where(run.evidence["answer_only"], subset="all")
    columns = ("delta_p", "delta_p_low", "delta_p_high")
    views = [
        View(row="", column=f"{mode.capitalize()} mode", y="ΔP",
             series=_pathways(run, where(table, mode=mode), columns))
        for mode in MODES
    ]  # fmt: skip
    caption = "The answer is read again in a pass without the question. Groups are the knockout’s."
    return Piece(name="answer_only", views=views, caption=caption)


def windows(run: RunView) -> Piece:
    """ΔP by choice of blocks, a view per choice and mode."""
    table = run.evidence["windows"]
    columns = ("delta_p", "delta_p_low", "delta_p_high")
    views = [
        View(row=f"{mode} mode", column=_blocks(str(kind)), y="ΔP",
             series=_pathways(run, where(table, layers=kind, mode=mode), columns))
        for mode in MODES
        for kind in dict.fromkeys(values(table, "layers"))
    ]  # fmt: skip
    caption = (
        "The knockout in other blocks. The groups are always those of the run’s own knockout, so "
        "all panels speak of the same samples."
    )
    return Piece(name="windows", views=views, caption=caption)


def boundary(run: RunView) -> Piece:
    """Accuracy, abstention and popularity of Q and A, a view per measure and mode."""
    table = where(run.evidence["boundary"], subset="all")
    there = set(values(table, "measure"))
    views = []
    for mode in MODES:
        for name, (title, y, factor) in MEASURES.items():
            if name in there:
                rows = where(table, mode=mode, measure=name)
                series = _pathways(run, rows, ("value", "low", "high"), factor=factor)
                views.append(View(row=f"{mode} mode", column=title, y=y, series=series))
    caption = (
        "What each pathway knows, over all answers. Whether it still differs within a predicted "
        "class stands in the report’s table."
    )
    return Piece(name="boundary", views=views, caption=caption, share_y=False)


def awareness(run: RunView) -> Piece:
    """AUROC of predictors of the pathway, a view per dataset and reading."""
    views = []
    for mode, subset, row in READINGS:
        for name, title in run.titles.items():
            rows = where(run.evidence["awareness"], dataset=name, mode=mode, subset=subset)
            series = [
                _curve(where(rows, predictor=predictor), ("auroc", "low", "high"), label=label,
                       color=color, dashed=dashed)
                for predictor, (label, color, dashed) in PREDICTORS.items()
                if predictor in set(values(rows, "predictor"))
            ]  # fmt: skip
            views.append(View(row=row, column=title, y="AUROC (Q against A)", series=series))
    caption = (
        "How well the pathway can be told without a knockout, on folds not trained on. Only what "
        "lies above the dashed lines is more than the probe’s own logit. Dotted: chance."
    )
    return Piece(name="awareness", views=views, caption=caption, unit="share", zero=0.5)


CURVES: Mapping[str, Callable[[RunView], Piece]] = {
    "patching": patching,
    "answer_only": answer_only,
    "boundary": boundary,
    "awareness": awareness,
    "windows": windows,
}


def _blocks(kind: str) -> str:
    if kind.startswith("window:"):
        return f"{kind.removeprefix('window:')} blocks up to the layer"
    return {"cumulative": "all blocks up to the layer", "single": "one block alone"}.get(kind, kind)


def _pathways(
    run: RunView, table: pd.DataFrame, columns: tuple[str, str, str], *, factor: float = 1
) -> list[Series]:
    """Q and A of each dataset, in the colours of every other figure."""
    found = []
    for position, (name, title) in enumerate(run.titles.items()):
        for pathway in ("Q", "A"):
            rows = where(table, dataset=name, pathway=pathway)
            label, color = f"{pathway}-Anchored ({title})", color_of(position, pathway)
            dashed = pathway == "A"
            if len(rows):
                found.append(_curve(rows, columns, label=label, color=color, dashed=dashed,
                                    factor=factor))  # fmt: skip
    return found


def _curve(
    rows: pd.DataFrame,
    columns: tuple[str, str, str],
    *,
    label: str,
    color: str,
    dashed: bool = False,
    factor: float = 1,
) -> Series:
    """The columns (value, low, high) by layer."""
    named = dict(zip(("v", "v_low", "v_high"), columns, strict=True))
    rows = rows.assign(**{new: factor * values(rows, old) for new, old in named.items()})
    return curve(rows, "v", label=label, color=color, dashed=dashed)
