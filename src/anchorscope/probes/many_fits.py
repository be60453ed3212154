"""Fit many L2-penalised logistic regressions at once on one matrix of states.

The probes of a layer (kinds × folds) learn from rows of the same states, so that a step of all of
them is two matrix products. A fit gives the questions that it leaves out weight 0, and its
standardisation is two vectors: no row is copied.

The solver is L-BFGS, preconditioned by the curvature of a few rows. Logits are linear in the
coefficients, so the line search needs no product of its own. Steps are taken with the matrix in
single precision, in half the time, and then continued in double precision until the gradient is
small enough, which it mostly is at once. Converged fits leave the batch.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from anchorscope.config import Balance, default_of
from anchorscope.errors import UserError

# Against the mean of the losses. Held-out AUROC less that of the best C, at C = 1, 3 and 10: on
# states of the bundled model (mean of 5 layers) -0.006, 0, -0.007 with 320 answers and -0.013,
# -0.002, 0 with 512. On made-up states with falling spectra (n 320 to 3,000, width 576 and 1,536,
# mean of 12 worlds) -0.001, -0.005, -0.016 where 10 directions carry the signal, and -0.051,
# -0.024, -0.008 where 200 do.
DEFAULT_C = default_of("C")
TOLERANCE = 1e-6  # the largest slope of the mean loss (scikit-learn's `tol`), times 1 + C
_FINEST = 3e-8  # for weak penalties: logits of 5 and more need no fourth digit
_SINGLE = 2e-7  # a smaller slope is rounding in single precision
_CONSTANT = 1e-12  # of the mean square: a feature of less variance is constant in a fit's rows
MAX_STEPS = 1000
MEMORY = 5  # L-BFGS steps that are remembered
_ENOUGH = 0.3  # a line search ends where the slope is this share of what it began with
_TRIES = 30  # of a line search at most, and hardly ever more than two
_ROWS = 400  # rows behind the preconditioner
_BEND = 0.15  # usual p (1 - p)

Made = tuple[np.ndarray, np.ndarray]  # coefficients [fit, width], intercepts [fit]


class ProbeInputError(UserError, ValueError):
    """A UserError to the command line; the ValueError that scikit-learn's tools expect."""


class Request(NamedTuple):
    """Fits to make on the states of a layer: the arguments of `fit_many` beside the states."""

    y: np.ndarray  # [fit, question], 0 or 1
    weights: np.ndarray  # [fit, question], 0: left out
    C: np.ndarray  # [fit]


def fit_many(x: np.ndarray, y: np.ndarray, weights: np.ndarray, C: np.ndarray) -> Made:
    """Coefficients [fit, width] and intercepts [fit] of fits that share states x [question, width].

    A fit minimises the mean of its losses, weighted by `weights` [fit, question] (0: left out),
    plus |coefficients|² / 2C on features standardised by its own rows. `y` is from 0 to 1,
    [question] or [fit, question]; `C` is [fit]. The logit is x · coefficients + intercept, of raw
    states. Everything is in double precision.
    """
    used = (weights > 0).any(axis=0)
    if not used.all():
        x, y, weights = x[used], y[..., used], weights[:, used]
    columns = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    features, middle = columns[:, :-1], x.mean(axis=0)
    features -= middle
    spread = (features**2).mean(axis=0) ** 0.5
    # The mean of equal numbers is rounded, and leaves a spread of the rounding's size.
    spread = np.where(spread > 10 * np.finfo(float).eps * np.abs(middle), spread, 1.0)
    features /= spread
    mean, scale = _mean_and_scale(features, weights > 0)
    share = weights / weights.sum(axis=1, keepdims=True)
    fits = {"y": y + 0.0 * share, "share": share, "C": C, "mean": mean, "scale": scale}
    raw = _to_raw(_minimise(fits, columns), mean, scale)
    coefficients = raw[:, :-1] / spread
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
    """The fits with coefficients in single precision, as they are saved.

    Each intercept takes up what the rounding moves at the mean of the fit's own rows `learns`
    [fit, question]: far from zero that would be much more than the rounding itself.
    """
    rounded = coefficients.astype(np.float32)
    mean = learns @ x / learns.sum(axis=1, keepdims=True)
    return rounded, intercept + ((coefficients - rounded) * mean).sum(axis=1)


def check_finite(X: np.ndarray) -> None:
    """Raise where X [question, width] holds NaN or infinity, naming the first place."""
    if not np.isfinite(X).all():
        rows, columns = np.nonzero(~np.isfinite(X))
        raise ProbeInputError(
            f"The states hold NaN or inf in {len(np.unique(rows))} of {len(X)} rows (first: row "
            f"{rows[0]}, column {columns[0]}). Leave these questions out or compute their "
            "states again."
        )


def _mean_and_scale(x: np.ndarray, learns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each fit's rows, [fit, width] each.

    A constant feature has an infinite deviation, so that its weight is exactly 0.
    """
    part = learns / learns.sum(axis=1, keepdims=True)
    mean, square = part @ x, part @ x**2
    variance = square - mean**2
    variance[variance <= _CONSTANT * square] = np.inf
    return mean, variance**0.5


def _to_raw(point: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Coefficients of standardised features as those of the columns, [fit, width + 1]."""
    coefficients = point[:, :-1] / scale
    last = point[:, -1] - (coefficients * mean).sum(axis=1)
    return np.concatenate([coefficients, last[:, None]], axis=1)


def _minimise(fits: dict[str, np.ndarray], columns: np.ndarray) -> np.ndarray:
    """The best point of each fit, [fit, width + 1].

    `columns` are [question, width + 1], the last one 1.
    """
    single, C = columns.astype(np.float32), fits["C"]
    half = _half_inverse(single, C)
    tolerance = (TOLERANCE / (1.0 + C)).clip(_FINEST)
    point = np.zeros((len(C), columns.shape[1]))
    coarse = fits | {"tolerance": tolerance.clip(_SINGLE)}
    point, _ = _Descent(coarse, point, single, half).run(MAX_STEPS // 4)
    fine = fits | {"tolerance": tolerance}
    point, unfinished = _Descent(fine, point, columns, half).run(MAX_STEPS)
    if unfinished:
        from sklearn.exceptions import ConvergenceWarning  # slow to import, hardly needed

        warnings.warn(f"{unfinished} fits did not converge.", ConvergenceWarning, stacklevel=4)
    return point


def _half_inverse(columns: np.ndarray, C: np.ndarray) -> np.ndarray:
    """H [row, width], of which (1 - H'H) / r approximates the inverse curvature.

    The curvature is about r + S'S with S some rows of the matrix, scaled. By Woodbury's identity
    its inverse is (1 - S'(r + SS')⁻¹S) / r, so LH = S where LL' = r + SS'. r is 1/C and what the
    rows left out add in directions that these do not reach: with 1/C alone weak penalties take up
    to four times the steps. The r inside serves all fits; where theirs differ the steps make up
    for it.
    """
    rows = columns[:: -(-len(columns) // _ROWS), :-1]
    rows = (_BEND / len(rows)) ** 0.5 * rows
    if len(rows) > rows.shape[1]:  # narrow states: a triangle of their width has the same S'S
        rows = np.asarray(np.linalg.qr(rows, mode="r"))
    gram = rows @ rows.T
    gram[np.diag_indices(len(rows))] += float(np.exp(np.log(1.0 / C + _BEND).mean()))
    return solve_triangular(np.linalg.cholesky(gram), rows, lower=True)


class _Descent:
    """L-BFGS on a batch of fits, each at a point [fit, width + 1].

    A point holds coefficients of features standardised by the fit's own rows, and the intercept.
    """

    _PER_FIT = ("y", "share", "C", "mean", "scale", "tolerance",
                "point", "logits", "chance", "slope")  # fmt: skip

    def __init__(
        self, fits: dict[str, np.ndarray], point: np.ndarray, columns: np.ndarray, half: np.ndarray
    ) -> None:
        self.y, self.share, self.C = fits["y"], fits["share"], fits["C"]
        self.mean, self.scale, self.tolerance = fits["mean"], fits["scale"], fits["tolerance"]
        self.point, self.half, self.columns = point, half, columns
        # In the order of its rows OpenBLAS takes half the time for thin products.
        single = columns.dtype == np.float32
        self.turned = np.ascontiguousarray(columns.T) if single else columns.T
        self.logits = self._logits(point).astype(np.float64, copy=False)
        self.chance = _expit(self.logits)
        self.slope = self._gradient()
        # Step, change of the gradient, and the inverse of their product.
        self.history: deque[tuple[np.ndarray, ...]] = deque(maxlen=MEMORY)

    def run(self, most: int) -> tuple[np.ndarray, int]:
        """The points once no slope is above its tolerance, and how many fits `most` steps left."""
        final, numbers = np.zeros_like(self.point), np.arange(len(self.point))
        for _ in range(most):
            still_open = np.abs(self.slope).max(axis=1) > self.tolerance
            if not still_open.all():
                final[numbers] = self.point
                numbers = numbers[still_open]
                if not len(numbers):
                    return final, 0
                for name in self._PER_FIT:
                    setattr(self, name, getattr(self, name)[still_open])
                kept = (tuple(part[still_open] for part in step) for step in self.history)
                self.history = deque(kept, maxlen=MEMORY)
            self._step()
        final[numbers] = self.point
        return final, int((np.abs(self.slope).max(axis=1) > self.tolerance).sum())

    def _step(self) -> None:
        """One step of each fit."""
        direction = -self._times_inverse_curvature(self.slope)
        along = self._logits(direction)
        length, self.chance = self._search_line(direction, along)
        step = length[:, None] * direction
        self.point, self.logits = self.point + step, self.logits + length[:, None] * along
        before, self.slope = self.slope, self._gradient()
        change = self.slope - before
        bend = _dot(step, change)
        # A step too short to show the curvature is passed over.
        inverse = np.where(bend > 0, 1.0 / np.where(bend > 0, bend, 1.0), 0.0)
        self.history.append((step, change, inverse))

    def _times_inverse_curvature(self, vector: np.ndarray) -> np.ndarray:
        """L-BFGS's two loops around the preconditioner, on a vector [fit, width + 1]."""
        factors = []
        for step, change, inverse in reversed(self.history):
            factors.append(inverse * _dot(step, vector))
            vector = vector - factors[-1][:, None] * change
        features = vector[:, :-1].astype(self.half.dtype)
        reached = (features @ self.half.T) @ self.half
        inner = (vector[:, :-1] - reached) / (1.0 / self.C + _BEND)[:, None]
        vector = np.concatenate([inner, vector[:, -1:] / _BEND], axis=1)
        for (step, change, inverse), factor in zip(self.history, reversed(factors), strict=True):
            vector = vector + (factor - inverse * _dot(change, vector))[:, None] * step
        return vector

    def _search_line(
        self, direction: np.ndarray, along: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """How far to go [fit], and p there: Newton's method along the line."""
        inner, square = (
            _dot(part[:, :-1], direction[:, :-1]) / self.C for part in (self.point, direction)
        )
        weighted, chance = self.share * along, self.chance
        bends = weighted * along
        first = _dot(weighted, chance - self.y) + inner
        bend = _dot(bends, chance * (1.0 - chance)) + square
        length = -first / np.where(bend > 0, bend, 1.0)  # converged: no direction and no bend
        low, high = 0.0 * first, np.full_like(first, np.inf)
        for _ in range(_TRIES):
            chance = _expit(self.logits + length[:, None] * along)
            here = _dot(weighted, chance - self.y) + inner + length * square
            searching = abs(here) > _ENOUGH * abs(first)
            if not searching.any():
                break
            low, high = np.where(here < 0, length, low), np.where(here < 0, high, length)
            bend = _dot(bends, chance * (1.0 - chance)) + square
            moved = length - here / np.where(bend > 0, bend, 1.0)
            halved = np.where(np.isinf(high), 2.0 * length, (low + high) / 2)
            moved = np.where((moved > low) & (moved < high), moved, halved)
            length = np.where(searching, moved, length)
        return length, chance

    def _gradient(self) -> np.ndarray:
        """The gradient of each fit's loss, [fit, width + 1]."""
        residual = (self.share * (self.chance - self.y)).astype(self.columns.dtype, copy=False)
        raw = (residual @ self.columns).astype(np.float64, copy=False)
        last = raw[:, -1:]
        inner = (raw[:, :-1] - self.mean * last) / self.scale
        penalty = self.point[:, :-1] / self.C[:, None]
        return np.concatenate([inner + penalty, last], axis=1)

    def _logits(self, point: np.ndarray) -> np.ndarray:
        """Logits [fit, question] of points, in the precision of the columns."""
        return (
            _to_raw(point, self.mean, self.scale).astype(self.columns.dtype, copy=False)
            @ self.turned
        )


def _dot(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The inner products of rows, [fit]."""
    return np.einsum("fw,fw->f", one, other)


def _expit(logits: np.ndarray) -> np.ndarray:
    """The probabilities of logits, without overflow."""
    return 1.0 / (1.0 + np.exp(-logits.clip(-700.0, 700.0)))
