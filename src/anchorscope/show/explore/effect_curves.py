"""What the figure of the page shows: ΔP of the groups, what the nulls give, and the lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anchorscope.engine.passes import CLEAN, KNOCKOUT
from anchorscope.pathways.one_law import fit_line
from anchorscope.records import MODES, Mode
from anchorscope.run_folder.view import RunView, values
from anchorscope.show.curves import Series, pathway_series
from anchorscope.show.explore.stored_beliefs import Beliefs
from anchorscope.show.null_band import null_series


def curves(
    run: RunView, titles: Mapping[str, str], mode: Mode, *, control: bool = False
) -> list[dict[str, Any]]:
    """Q and A of each dataset of the run, as in layers.csv or control_layers.csv."""
    own = [
        (name, pathway)
        for name in titles
        for pathway in ("Q", "A")  # the order of pathway_series
    ]
    table = run.control_layers if control else run.layers
    drawn = zip(own, pathway_series(table, titles, mode), strict=True)
    return [
        {"dataset": name, "pathway": pathway, **_numbers(series)}
        for (name, pathway), series in drawn
        if name in run.titles and (len(series.layer) or not control)
    ]


def null_bands(run: RunView, mode: Mode) -> list[dict[str, Any]]:
    """Where Q would lie under one mechanism; nothing where the run has no such band."""
    bands = [(name, null_series([run], {name: title}, mode)) for name, title in run.titles.items()]
    return [{"dataset": name, **_numbers(of[0])} for name, of in bands if of]


def lines(run: RunView, beliefs: Beliefs, mode: Mode) -> list[dict[str, Any]]:
    """The one-mechanism line of each dataset by layer: knocked-out logit on the clean one.

    The null fits a line for each fold's probe; `spread` is what these leave over. The line drawn
    is the least-squares line through all of them.
    """
    of = values(run.samples, "dataset").to_numpy()
    fold = _folds(run)
    clean, knockout = (beliefs.logits[name][mode] for name in (CLEAN.name, KNOCKOUT.name))
    found = []
    for name in run.titles:
        rows = of == name
        fits = [
            _fit(x[rows], y[rows], fold[rows]) for x, y in zip(clean.T, knockout.T, strict=True)
        ]
        keys = ("intercept", "slope", "spread")
        found.append(
            {"dataset": name} | {key: [fit[i] for fit in fits] for i, key in enumerate(keys)}
        )
    return found


def _folds(run: RunView) -> np.ndarray:
    if "fold" not in run.samples.columns:
        return np.zeros(len(run.samples), dtype=int)
    return values(run.samples, "fold").fillna(0).to_numpy(int)


def _fit(clean: np.ndarray, knockout: np.ndarray, fold: np.ndarray) -> tuple[float, float, float]:
    """Intercept, slope and spread; NaN where fewer than three samples were read."""
    known = np.isfinite(clean) & np.isfinite(knockout)
    x, y = clean[known], knockout[known]
    if len(x) < 3 or x.var() == 0:
        return (np.nan, np.nan, np.nan)
    slope, intercept = np.polyfit(x, y, 1)
    return float(intercept), float(slope), fit_line(x, y, fold[known]).spread


def _numbers(series: Series) -> dict[str, Any]:
    keys = ("layer", "value", "low", "high", "n")
    return {key: getattr(series, key).tolist() for key in keys}


def all_modes(run: RunView, titles: Mapping[str, str], beliefs: Beliefs) -> dict[str, Any]:
    """Everything the figure needs, by mode where modes differ."""
    return {
        "curves": {mode: curves(run, titles, mode) for mode in MODES},
        "nulls": {mode: null_bands(run, mode) for mode in MODES},
        "controls": {mode: curves(run, titles, mode, control=True) for mode in MODES},
        "lines": {mode: lines(run, beliefs, mode) for mode in MODES},
    }
