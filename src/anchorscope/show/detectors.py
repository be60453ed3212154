"""The figures of the detectors: ROC, reliability, risk against coverage, and transfer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.metrics import roc_curve

from anchorscope.detect.kinds import make_method
from anchorscope.run_folder.view import where
from anchorscope.show import canvas
from anchorscope.show.charts import FEW, PALETTE, Chart, Series, View
from anchorscope.stats.ranking import Curve, auroc, reliability, risk_coverage

# What a reader asks first; the table has them all.
DRAWN = ("min-log-prob", "p-true", "probe", "combined", "mop", "pr", "auto")
_PANELS = 3  # side by side


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """One kind of curve: a panel per dataset, a line per detector."""

    points: Callable[[np.ndarray, np.ndarray, np.ndarray], Curve]  # of z, score, probability
    x: str
    y: str
    diagonal: bool
    note: str


FIGURES = {
    "detect_roc": _Kind(
        points=lambda z, score, _: Curve(*roc_curve(z, score)[:2]),
        x="Right answers flagged",
        y="Wrong answers flagged",
        diagonal=True,
        note="Every answer is scored by a detector that was fitted without its entity.",
    ),
    "detect_reliability": _Kind(
        points=lambda z, _, probability: _reliable(z, probability),
        x="Probability of being wrong",
        y="Share that is wrong",
        diagonal=True,
        note="Bins of equal width with ten answers at least; on the dotted line a probability "
        "means what it says.",
    ),
    "detect_risk": _Kind(
        points=lambda z, score, _: risk_coverage(z, score),
        x="Answers given (coverage)",
        y="Wrong among them (risk)",
        diagonal=False,
        note="Answers are given in the order of trust; the right end is all of them.",
    ),
}


def write_detect_figures(
    folder: Path, scores: pd.DataFrame, transfer: pd.DataFrame | None = None
) -> list[Path]:
    """The files under figures/: detect_roc, detect_reliability, detect_risk, detect_transfer."""
    drawn = {name: _plot_curves(scores, kind) for name, kind in FIGURES.items()}
    if transfer is not None:
        drawn["detect_transfer"] = _plot_transfer(transfer)
    home = folder / "figures"
    return [file for name, fig in drawn.items() for file in canvas.save_figure(fig, home / name)]


def _plot_curves(scores: pd.DataFrame, kind: _Kind) -> Figure:
    """The curves of the detectors that are drawn, on answers about unseen entities."""
    views = []
    for dataset in dict.fromkeys(scores["dataset"]):
        series = []
        for name, color in _colours(scores).items():
            rows = where(scores, dataset=dataset, split="entity", detector=name)
            if len(rows):
                x, y = kind.points(*_columns(rows))[:2]
                none, n = np.full(len(x), np.nan), np.full(len(x), len(rows))
                label = make_method(name).name
                look = {"label": label, "color": color, "low": none, "high": none, "n": n}
                series.append(Series(layer=x, value=y, **look))
        views.append(View(column=str(dataset), y=kind.y, series=series))
    chart = Chart(views=views, x=kind.x, unit="share", zero=None, diagonal=kind.diagonal)
    return canvas.plot_chart(chart, caption=kind.note)


def _plot_transfer(transfer: pd.DataFrame) -> Figure:
    """AUROC by training set (rows) and test set (columns): a panel per detector."""
    drawn = [name for name in DRAWN if name in set(transfer["detector"])]
    columns = min(_PANELS, len(drawn))
    figure, axes = canvas.panels(-(-len(drawn) // columns), columns, share_y=False)
    others = transfer["kind"] == "left-out"
    transfer = transfer.assign(train=transfer["train"].mask(others, "all others"))
    tests = list(dict.fromkeys(transfer["test"]))
    trains = list(dict.fromkeys(transfer["train"]))
    for ax in axes.flat[len(drawn) :]:
        ax.set_visible(False)
    for ax, name in zip(axes.flat, drawn, strict=False):
        canvas.title(ax, make_method(name).name)
        _heat(ax, where(transfer, detector=name), trains, tests)
    note = "AUROC. Rows: trained on; columns: tested on. Entities that both have are left out."
    canvas.footer(figure, [], columns=1, caption=note)
    return figure


def _reliable(z: np.ndarray, probability: np.ndarray) -> Curve:
    predicted, true, count = reliability(z, probability)
    return Curve(predicted[count >= FEW], true[count >= FEW])


def _colours(scores: pd.DataFrame) -> Mapping[str, str]:
    """The detectors that are drawn, with their colours: DRAWN, and the best text control."""
    detectors = set(scores["detector"])
    drawn = [name for name in DRAWN if name in detectors]
    text = [name for name in sorted(detectors) if make_method(name).text_only]
    if text:
        drawn.insert(0, max(text, key=lambda name: _mean_auroc(scores, name)))
    return dict(zip(drawn, PALETTE, strict=False))


def _mean_auroc(scores: pd.DataFrame, name: str) -> float:
    parts = where(scores, detector=name).groupby(["dataset", "split"])
    return float(np.mean([auroc(*_columns(cast(pd.DataFrame, rows))[:2]) for _, rows in parts]))


def _columns(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    columns = ("z", "score", "probability")
    z, score, probability = (rows[name].to_numpy(dtype=float) for name in columns)
    return z, score, probability


def _heat(ax: Axes, rows: pd.DataFrame, trains: list[str], tests: list[str]) -> None:
    table = np.full((len(trains), len(tests)), np.nan)
    for row in rows.to_dict("records"):
        table[trains.index(row["train"]), tests.index(row["test"])] = row["auroc"]
    ax.imshow(table, vmin=0.5, vmax=1.0, cmap="viridis", aspect="auto")
    for (y, x), value in np.ndenumerate(table):
        text = f"{value:.2f}" if np.isfinite(value) else "–"
        colour = "white" if not value > 0.8 else "black"
        ax.text(x, y, text, ha="center", va="center", fontsize=canvas.SMALL,
                color=colour if np.isfinite(value) else canvas.FAINT)  # fmt: skip
    ax.set_xticks(range(len(tests)), tests)
    ax.set_yticks(range(len(trains)), trains)
    ax.set_xlabel("tested on", fontsize=canvas.TEXT)
    ax.grid(visible=False)
