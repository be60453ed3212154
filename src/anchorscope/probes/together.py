"""A batch of penalised logistic losses on one matrix, minimised together by L-BFGS.

Logits are linear in the coefficients, so that a line search needs no product of its own: a step is
two products for all fits. A fit that has converged leaves the batch. The steps are done with the
matrix in single precision, which takes half the time; from there it goes on in double precision
until the slope is small enough, which mostly it is at once.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

TOLERANCE = 1e-6  # the largest slope of the mean loss (scikit-learn's `tol`), times 1 + C
_FINEST = 3e-8  # for weak penalties: logits of 5 and more need no fourth digit
# Below this a slope worked out in single precision is rounding.
_SINGLE = 2e-7
MAX_STEPS = 1000
MEMORY = 5  # steps that tell of the curvature
_ENOUGH = 0.3  # a line search ends where the slope is this share of what it began with
_TRIES = 30  # at most, and hardly ever more than two
_ROWS = 400  # that tell of the curvature before the first step
_BEND = 0.15  # usual p (1 - p)

Array = Any  # numpy.ndarray or torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Fits:
    """Fits under way; a point is [fit, width + 1], of features standardised by the fit's rows."""

    columns: Array  # [question, width + 1], the last one 1
    y: Array  # [fit, question]
    share: Array  # [fit, question], sums to 1
    C: Array  # [fit]
    mean: Array  # [fit, width]
    scale: Array  # [fit, width]

    @property
    def xp(self) -> Any:
        """The library the arrays are of."""
        return namespace(self.columns)

    def to_raw(self, point: Array) -> Array:
        """The coefficients of the columns as they are, [fit, width + 1]."""
        coefficients = point[:, :-1] / self.scale
        shift = (coefficients * self.mean).sum(1)
        return self.xp.concatenate([coefficients, (point[:, -1] - shift)[:, None]], axis=1)

    def slope(self, products: Products, chance: Array, point: Array) -> Array:
        """The gradient [fit, width + 1]."""
        raw = products.by_rows(self.share * (chance - self.y))
        last = raw[:, -1:]
        of_features = (raw[:, :-1] - self.mean * last) / self.scale
        return self.xp.concatenate([of_features + point[:, :-1] / self.C[:, None], last], axis=1)

    def take(self, kept: np.ndarray) -> Fits:
        """Some of the fits alone."""
        of = {name: getattr(self, name)[kept] for name in ("y", "share", "C", "mean", "scale")}
        return replace(self, **of)


class Products:
    """Products with the columns [question, width + 1], in their precision or in single."""

    def __init__(self, columns: Array, *, single: bool) -> None:
        self.xp = namespace(columns)
        self.columns = self.xp.asarray(columns, dtype=self.xp.float32) if single else columns
        self.turned = _laid_out(self.columns.T) if single else self.columns.T

    def by_columns(self, raw: Array) -> Array:
        """Logits [fit, question] of coefficients [fit, width + 1]."""
        return self.xp.asarray(raw, dtype=self.columns.dtype) @ self.turned

    def by_rows(self, residual: Array) -> Array:
        """Sums of the rows [fit, width + 1], each times its residual [fit, question]."""
        product = self.xp.asarray(residual, dtype=self.columns.dtype) @ self.columns
        return self.xp.asarray(product, dtype=self.xp.float64)


class Guess:
    """The inverse curvature that some rows of the matrix tell of: before a step it is all there is.

    Curvature is r + S'S with S these rows, scaled; its inverse, by Woodbury's identity,
    (1 - S'(r + SS')⁻¹S) / r. r is 1/C and what the rows left out add in directions that these do
    not reach: with 1/C alone weak penalties take up to four times the steps. The r inside serves
    all fits; where theirs differ the steps make up for it.
    """

    def __init__(self, fits: Fits, columns: Array) -> None:
        xp = self.xp = namespace(columns)
        stride = -(-len(columns) // _ROWS)
        self.rows = columns[::stride, :-1]
        self.turned = _laid_out(self.rows.T)
        weight = _BEND / len(self.rows)
        middle = float(xp.exp(xp.log(_least_bend(fits.C)).mean()))
        gram = weight * (self.rows @ self.rows.T)
        gram[range(len(gram)), range(len(gram))] += middle
        self.solved = weight * (xp.linalg.inv(gram) @ self.rows)

    def __call__(self, vector: Array, C: Array) -> Array:
        """The inverse curvature times a vector [fit, width + 1]."""
        xp = self.xp
        of_features = xp.asarray(vector[:, :-1], dtype=self.rows.dtype)
        known = (of_features @ self.turned) @ self.solved
        inner = (vector[:, :-1] - known) / _least_bend(C)[:, None]
        return xp.concatenate([inner, vector[:, -1:] / _BEND], axis=1)


def _least_bend(C: Array) -> Array:
    """The curvature [fit] where the guess's rows tell of none; standardised features have _BEND."""
    return 1.0 / C + _BEND


def minimise(fits: Fits) -> Array:
    """The best point of each fit, [fit, width + 1]."""
    single = Products(fits.columns, single=True)
    guess = Guess(fits, single.columns)
    point = fits.xp.zeros_like(fits.columns[:1]) * fits.C[:, None]
    tolerance = TOLERANCE / (1.0 + fits.C)
    tolerance = fits.xp.where(tolerance > _FINEST, tolerance, _FINEST)
    coarse = fits.xp.where(tolerance > _SINGLE, tolerance, _SINGLE)
    point = _descend(fits, point, single, guess, coarse, most=MAX_STEPS // 4)
    double = Products(fits.columns, single=False)
    return _descend(fits, point, double, guess, tolerance, most=MAX_STEPS)


def _descend(
    fits: Fits, point: Array, products: Products, guess: Guess, tolerance: Array, *, most: int
) -> Array:
    """The points, gone down until no slope [fit] is above the tolerance, or `most` steps."""
    xp = fits.xp
    final, place = xp.zeros_like(point), np.arange(len(point))
    logits = xp.asarray(products.by_columns(fits.to_raw(point)), dtype=xp.float64)
    chance = _expit(logits, xp)
    slope = fits.slope(products, chance, point)
    history: deque[tuple[Array, Array, Array]] = deque(maxlen=MEMORY)
    for _ in range(most):
        open_ = to_numpy(xp.linalg.norm(slope, np.inf, 1) > tolerance)
        if not open_.all():
            final[place[~open_]] = point[~open_]
            place, fits, tolerance = place[open_], fits.take(open_), tolerance[open_]
            point, logits, chance, slope = (of[open_] for of in (point, logits, chance, slope))
            history = deque(((s[open_], d[open_], r[open_]) for s, d, r in history), maxlen=MEMORY)
        if not len(place):
            return final
        direction = -_curved(slope, history, guess, fits.C)
        along = products.by_columns(fits.to_raw(direction))
        length, chance = _line(fits, point, direction, logits, along, chance)
        step = length[:, None] * direction
        point, logits = point + step, logits + length[:, None] * along
        before, slope = slope, fits.slope(products, chance, point)
        change = slope - before
        bend = _dot(step, change, xp)
        # A step too short to tell of the curvature is passed over.
        history.append((step, change, xp.where(bend > 0, 1.0 / xp.where(bend > 0, bend, 1.0), 0.0)))
    if products.columns.dtype == xp.float64:
        warnings.warn(f"{len(place)} fits did not converge.", ConvergenceWarning, stacklevel=4)
    final[place] = point
    return final


def _curved(slope: Array, history: deque, guess: Guess, C: Array) -> Array:
    """The slope times the inverse curvature that the last steps tell of, [fit, width + 1]."""
    xp, vector, factors = guess.xp, slope, []
    for step, change, inverse in reversed(history):
        factors.append(inverse * _dot(step, vector, xp))
        vector = vector - factors[-1][:, None] * change
    vector = guess(vector, C)
    for (step, change, inverse), factor in zip(history, reversed(factors), strict=True):
        vector = vector + (factor - inverse * _dot(change, vector, xp))[:, None] * step
    return vector


def _line(fits: Fits, point, direction, logits, along, chance) -> tuple[Array, Array]:
    """How far to go [fit], and p there [fit, question]: Newton's method along the line."""
    xp, share = fits.xp, fits.share
    inner, square = (_dot(of[:, :-1], direction[:, :-1], xp) / fits.C for of in (point, direction))
    weighted = share * along
    bends = weighted * along
    first = _dot(weighted, chance - fits.y, xp) + inner
    length = -first / (_dot(bends, chance * (1.0 - chance), xp) + square)
    low, high = 0.0 * first, first * -np.inf
    for _ in range(_TRIES):
        chance = _expit(logits + length[:, None] * along, xp)
        here = _dot(weighted, chance - fits.y, xp) + inner + length * square
        searching = abs(here) > _ENOUGH * abs(first)
        if not bool(searching.any()):
            break
        low, high = xp.where(here < 0, length, low), xp.where(here < 0, high, length)
        moved = length - here / (_dot(bends, chance * (1.0 - chance), xp) + square)
        inside = (moved > low) & (moved < high)
        moved = xp.where(inside, moved, xp.where(xp.isinf(high), 2.0 * length, (low + high) / 2))
        length = xp.where(searching, moved, length)
    return length, chance


def _laid_out(matrix: Array) -> Array:
    """The matrix in the order of its rows: OpenBLAS takes half the time for thin products then."""
    return np.ascontiguousarray(matrix) if isinstance(matrix, np.ndarray) else matrix


def _dot(one: Array, other: Array, xp: Any) -> Array:
    return xp.einsum("fw,fw->f", one, other)


def _expit(logits: Array, xp: Any) -> Array:
    return 1.0 / (1.0 + xp.exp(-logits.clip(-700.0, 700.0)))


def namespace(x: Array) -> Any:
    """The library of an array: numpy, or torch where its caller has loaded it."""
    return np if isinstance(x, np.ndarray) else sys.modules["torch"]


def to_numpy(x: Array) -> np.ndarray:
    """The same numbers in memory."""
    return x if isinstance(x, np.ndarray) else x.cpu().numpy()
