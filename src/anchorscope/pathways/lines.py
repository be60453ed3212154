"""The line from the clean to the knocked-out logit, and what it leaves over.

Every fold has a probe of its own, with its own scale and offset. So "one line" is one line for
each probe that reads: intercept and slope by fold. A single line over all folds would turn the
probes' differences into differences between samples, and five probes into five humps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FEWEST = 4  # samples of a fold below which it takes the line of all samples


class Line(NamedTuple):
    """Fitted knocked-out logits [question], what is left over, and its spread."""

    fitted: np.ndarray
    residual: np.ndarray
    spread: float  # standard deviation of the noise, corrected for the parameters fitted


def fit_line(clean: np.ndarray, knockout: np.ndarray, fold: np.ndarray) -> Line:
    """The least-squares line of each fold. Logits [question] without NaN."""
    fitted = np.empty_like(clean)
    parameters = 0
    for rows in (fold == number for number in np.unique(fold)):
        source = rows if rows.sum() >= FEWEST else np.ones(len(clean), dtype=bool)
        fitted[rows] = _predict(clean[source], knockout[source], clean[rows])
        parameters += 2 * int(rows.sum() >= FEWEST)
    residual = knockout - fitted
    free = max(len(clean) - parameters, 1)
    return Line(fitted, residual, float(np.sqrt((residual**2).sum() / free)))


def _predict(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    middle, variance = x.mean(), x.var()
    slope = ((x - middle) * (y - y.mean())).mean() / variance if variance > 0 else 0.0
    return y.mean() + slope * (at - middle)
