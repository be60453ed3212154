"""Draw figures of detectors: ROC, reliability, risk against coverage, and transfer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from sklearn.metrics import roc_curve

from anchorscope.detect.kinds import make_method
from anchorscope.run_folder.view import where
from anchorscope.show import canvas
from anchorscope.show.charts import FEW, PALETTE, Chart, Maps, Series, View
from anchorscope.stats.ranking import Curve, auroc, reliability, risk_coverage

# The detectors in figures; the table has all of them.
DRAWN = ("min-log-prob", "p-true", "probe", "combined", "mop", "pr", "auto")


Points = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def _reliable(z: np.ndarray, _: np.ndarray, probability: np.ndarray) -> Curve:
    predicted, true, count = reliability(z, probability)
    return Curve(predicted[count >= FEW], true[count >= FEW])


# The points of a curve from z, score and probability; titles of x and y; diagonal; caption.
FIGURES: Mapping[str, tuple[Points, str, str, bool, str]] = {
    "detect_roc": (
        lambda z, score, _: roc_curve(z, score)[:2],
        "Right answers flagged",
        "Wrong answers flagged",
        True,
        "Every answer is scored by a detector that was fitted without its entity.",
    ),
    "detect_reliability": (
        _reliable,
        "Probability of being wrong",
        "Share that is wrong",
        True,
        "Bins of equal width with ten answers at least; on the dotted line a probability "
        "means what it says.",
    ),
    "detect_risk": (
        lambda z, score, _: risk_coverage(z, score),
        "Answers given (coverage)",
        "Wrong among them (risk)",
        False,
        "Answers are given in the order of trust; the right end is all of them.",
    ),
}


def write_detect_figures(
    folder: Path, scores: pd.DataFrame, transfer: pd.DataFrame | None = None
) -> list[Path]:
    """Write detect_roc, detect_reliability, detect_risk and detect_transfer under figures/."""
    drawn = {name: _plot_curves(scores, *about) for name, about in FIGURES.items()}
    if transfer is not None:
        drawn["detect_transfer"] = _plot_transfer(transfer)
    home = folder / "figures"
    return [file for name, fig in drawn.items() for file in canvas.save_figure(fig, home / name)]


def _plot_curves(
    scores: pd.DataFrame, points: Points, x: str, y: str, diagonal: bool, caption: str
) -> Figure:
    """Draw a panel per dataset, a curve per detector, on answers about unseen entities."""
    views = []
    for dataset in dict.fromkeys(scores["dataset"]):
        series = []
        for name, color in _colors(scores).items():
            rows = where(scores, dataset=dataset, split="entity", detector=name)
            if len(rows):
                at, value = points(*_columns(rows))
                none, n = np.full(len(at), np.nan), np.full(len(at), len(rows))
                curve = Series(
                    label=make_method(name).name, color=color, layer=at, value=value, low=none,
                    high=none, n=n,
                )  # fmt: skip
                series.append(curve)
        views.append(View(column=str(dataset), y=y, series=series))
    chart = Chart(views=views, x=x, unit="share", zero=None, diagonal=diagonal)
    return canvas.plot_chart(chart, caption=caption)


def _plot_transfer(transfer: pd.DataFrame) -> Figure:
    """Draw AUROC by training set (rows) and test set (columns): a panel per detector."""
    others = transfer["kind"] == "left-out"
    transfer = transfer.assign(train=transfer["train"].mask(others, "all others"))
    trains, tests = (list(dict.fromkeys(transfer[name])) for name in ("train", "test"))
    maps = {
        make_method(name).name: where(transfer, detector=name)
        .pivot_table(index="train", columns="test", values="auroc")
        .reindex(index=trains, columns=tests)
        .to_numpy(float)
        for name in DRAWN
        if name in set(transfer["detector"])
    }
    caption = "AUROC. Rows: trained on; columns: tested on. Entities that both have are left out."
    chart = Maps(maps=maps, caption=caption, ends=(0.5, 1.0), x="tested on", y="trained on",
                 names=(trains, tests))  # fmt: skip
    return canvas.plot_maps(chart, caption=caption)


def _colors(scores: pd.DataFrame) -> Mapping[str, str]:
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


def _columns(rows: pd.DataFrame) -> np.ndarray:
    """z, score and probability [3, answer]."""
    return rows[["z", "score", "probability"]].to_numpy(float).T
