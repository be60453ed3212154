"""Many logistic regressions on one matrix of states, all fitted at once.

The probes of a layer (kinds × folds × fold seeds) learn from rows of the same matrix. Here a step
of all of them is two matrix products; a fit that has converged leaves the batch. What a fit leaves
out has weight 0, and its standardisation is two small vectors, so that no row is copied. The same
lines run on numpy arrays and on torch tensors, on whatever device these are.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from anchorscope.config import Balance

TOLERANCE = 2e-6  # the largest slope of the mean loss (scikit-learn's `tol`), times 1 + C
MAX_STEPS = 1000
MEMORY = 10  # steps that tell of the curvature
_ENOUGH = 0.3  # a line search ends where the slope is this share of what it began with
_TRIES = 30  # at most, and hardly ever more than two
_DOUBT = 1e-6  # a variance so small beside the mean square is worked out from the rows themselves

Array = Any  # numpy.ndarray or torch.Tensor


def fit_many(x: Array, y: Array, weights: Array, C: Array) -> tuple[Array, Array]:
    """Coefficients [fit, width] and intercepts [fit] of fits that share states x [question, width].

    A fit minimises the mean of its losses, weighted by `weights` [fit, question] (0: left out),
    plus |coefficients|² / 2C on features standardised by its own rows. `y` is 0 or 1, [question]
    or [fit, question]; `C` is [fit]. The logit x · coefficients + intercept is of states as they
    come. All in double precision.
    """
    xp = _namespace(x)
    used = (weights > 0).any(0)
    if not bool(used.all()):
        x, y, weights = x[used], y[..., used], weights[:, used]
    share = weights / weights.sum(1)[:, None]
    y = y + 0.0 * share  # [fit, question]
    middle = x.mean(0)
    columns = xp.concatenate([x - middle, xp.ones_like(x[:, :1])], axis=1)  # [question, width + 1]
    mean, scale = _mean_and_scale(columns[:, :-1], weights > 0, xp)
    problem = _Problem(columns=columns, y=y, share=share, C=C, mean=mean, scale=scale, xp=xp)
    raw = problem.to_raw(_minimise(problem))
    coefficients = raw[:, :-1]
    return coefficients, raw[:, -1] - coefficients @ middle


def class_weights(y: np.ndarray, learns: np.ndarray, balance: Balance) -> np.ndarray:
    """The weight of each question in each fit [fit, question]; `learns` is bool of that shape.

    `balance` "weights" gives both classes of a fit's rows the same total weight.
    """
    if balance == "none":
        return learns.astype(np.float64)
    ones = np.sum(learns * y, axis=1, keepdims=True)
    rows = learns.sum(axis=1, keepdims=True)
    return learns * np.where(y == 1, rows / (2 * ones), rows / (2 * (rows - ones)))


def to_single(
    coefficients: np.ndarray, intercept: np.ndarray, x: np.ndarray, learns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The fits with coefficients in single precision, so that what is saved is what is used.

    Each intercept takes up what the rounding moves at the mean of the fit's own rows `learns`
    [fit, question]: far from zero that would be much more than the rounding itself.
    """
    rounded = coefficients.astype(np.float32)
    mean = learns @ x / learns.sum(axis=1, keepdims=True)
    return rounded, intercept + ((coefficients - rounded) * mean).sum(axis=1)


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """Fits that are still under way."""

    columns: Array  # [question, width + 1], the last one 1
    y: Array  # [fit, question]
    share: Array  # [fit, question], sums to 1
    C: Array  # [fit]
    mean: Array  # [fit, width]
    scale: Array  # [fit, width]
    xp: Any

    @property
    def tolerance(self) -> Array:
        """The slope [fit] at which to stop: a weaker penalty turns it into a larger error."""
        return TOLERANCE / (1.0 + self.C)

    def to_raw(self, point: Array) -> Array:
        """Coefficients of the columns, from those of standardised features, [fit, width + 1]."""
        coefficients = point[:, :-1] / self.scale
        shift = (coefficients * self.mean).sum(1)
        return self.xp.concatenate([coefficients, (point[:, -1] - shift)[:, None]], axis=1)

    def logits(self, point: Array) -> Array:
        """[fit, question] of a point [fit, width + 1]; linear in it."""
        return self.to_raw(point) @ self.columns.T

    def slope(self, residual: Array, point: Array) -> Array:
        """The gradient [fit, width + 1], from residuals [fit, question] that hold the weights."""
        raw = residual @ self.columns
        last = raw[:, -1:]
        of_features = (raw[:, :-1] - self.mean * last) / self.scale
        return self.xp.concatenate([of_features + point[:, :-1] / self.C[:, None], last], axis=1)

    def residual(self, logits: Array) -> Array:
        """The slope of the loss by the logit, [fit, question]."""
        return self.share * (_expit(logits, self.xp) - self.y)

    def take(self, kept: Array) -> _Problem:
        """Some of the fits alone."""
        of = {name: getattr(self, name)[kept] for name in ("y", "share", "C", "mean", "scale")}
        return _Problem(columns=self.columns, xp=self.xp, **of)


def _minimise(problem: _Problem) -> Array:
    """The best point of each fit [fit, width + 1], by L-BFGS.

    Logits are linear in the point, so that a line search needs no product of its own.
    """
    xp = problem.xp
    point = xp.zeros_like(problem.columns[:1]) * problem.C[:, None]
    final, place = xp.zeros_like(point), np.arange(len(point))
    logits = xp.zeros_like(problem.y)
    residual = problem.residual(logits)
    slope = problem.slope(residual, point)
    history: deque[tuple[Array, Array, Array]] = deque(maxlen=MEMORY)
    for _ in range(MAX_STEPS):
        open_ = _numpy(xp.linalg.norm(slope, np.inf, 1) > problem.tolerance)
        if not open_.all():
            final[place[~open_]] = point[~open_]
            place, problem = place[open_], problem.take(open_)
            point, logits, residual, slope = (of[open_] for of in (point, logits, residual, slope))
            history = deque(((s[open_], d[open_], r[open_]) for s, d, r in history), maxlen=MEMORY)
        if not len(place):
            return final
        direction = -_curved(slope, history, xp)
        along = problem.logits(direction)
        length, residual = _line(problem, point, direction, logits, along, residual)
        step = length[:, None] * direction
        point, logits = point + step, logits + length[:, None] * along
        before, slope = slope, problem.slope(residual, point)
        change = slope - before
        history.append((step, change, 1.0 / _dot(step, change, xp)))
    warnings.warn(f"{len(place)} fits did not converge.", ConvergenceWarning, stacklevel=3)
    final[place] = point
    return final


def _curved(slope: Array, history: deque, xp: Any) -> Array:
    """The slope times the inverse curvature that the last steps tell of, [fit, width + 1]."""
    vector, factors = slope, []
    for step, change, inverse in reversed(history):
        factors.append(inverse * _dot(step, vector, xp))
        vector = vector - factors[-1][:, None] * change
    if history:
        step, change, inverse = history[-1]
        vector = vector * (1.0 / (inverse * _dot(change, change, xp)))[:, None]
    for (step, change, inverse), factor in zip(history, reversed(factors), strict=True):
        vector = vector + (factor - inverse * _dot(change, vector, xp))[:, None] * step
    return vector


def _line(problem: _Problem, point, direction, logits, along, residual) -> tuple[Array, Array]:
    """How far to go [fit], and the residuals there: Newton's method on the slope along the line."""
    xp, share = problem.xp, problem.share
    inner, square = (
        _dot(of[:, :-1], direction[:, :-1], xp) / problem.C for of in (point, direction)
    )
    weight = share * along**2
    chance = _expit(logits, xp)
    first = _dot(residual, along, xp) + inner
    bend = _dot(weight, chance * (1.0 - chance), xp) + square
    length, low, high = -first / bend, 0.0 * first, first * -np.inf
    for _ in range(_TRIES):
        chance = _expit(logits + length[:, None] * along, xp)
        residual = share * (chance - problem.y)
        here = _dot(residual, along, xp) + inner + length * square
        searching = abs(here) > _ENOUGH * abs(first)
        if not bool(searching.any()):
            break
        low, high = xp.where(here < 0, length, low), xp.where(here < 0, high, length)
        bend = _dot(weight, chance * (1.0 - chance), xp) + square
        moved = length - here / bend
        inside = (moved > low) & (moved < high)
        moved = xp.where(inside, moved, xp.where(xp.isinf(high), 2.0 * length, (low + high) / 2))
        length = xp.where(searching, moved, length)
    return length, residual


def _mean_and_scale(x: Array, learns: Array, xp: Any) -> tuple[Array, Array]:
    """Mean and standard deviation of each fit's rows, [fit, width] each.

    A constant feature has an infinite one here, so that its weight is 0 exactly.
    """
    part = learns * xp.ones_like(x[:1, :1]) / learns.sum(1)[:, None]
    mean = part @ x
    square = part @ x**2
    variance = square - mean**2
    doubtful = variance <= _DOUBT * square
    for fit in np.flatnonzero(_numpy(doubtful.any(1))):
        at = doubtful[fit]
        rows = x[learns[fit]][:, at]
        mean[fit, at] = rows.mean(0)
        spread = ((rows - mean[fit, at]) ** 2).mean(0)
        # The mean of equal numbers is rounded, and leaves a spread of the rounding's size.
        variance[fit, at] = xp.where((rows == rows[:1]).all(0), np.inf, spread)
    return mean, variance**0.5


def _dot(one: Array, other: Array, xp: Any) -> Array:
    return xp.einsum("fw,fw->f", one, other)


def _expit(logits: Array, xp: Any) -> Array:
    return 1.0 / (1.0 + xp.exp(-logits))


def _namespace(x: Array) -> Any:
    return np if isinstance(x, np.ndarray) else sys.modules["torch"]


def _numpy(x: Array) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else x.cpu().numpy()
