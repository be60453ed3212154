"""Fit many L2-penalised logistic regressions at once on one matrix of states.

The probes of a layer (kinds × folds) learn from rows of the same states, so that a step of all of
them is two matrix products. A fit gives the questions that it leaves out weight 0, and its
standardisation is two vectors: no row is copied.

The solver is L-BFGS, preconditioned by the curvature of a few rows. Logits are linear in the
coefficients, so the line search needs no product of its own. Steps are taken with the matrix in
single precision, in half the time, and then continued in double precision until the gradient is
small enough, which it mostly is at once. Converged fits leave the batch. The same lines run on
NumPy arrays and on a GPU's tensors.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from types import ModuleType
from typing import Any, NamedTuple

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
# Names the device that large fits are made on. Set for the processes that analyse beside a model on
# a GPU, which has room for them.
FIT_DEVICE = "ANCHORSCOPE_FIT_DEVICE"
_LARGE = 1 << 20  # numbers in a matrix; smaller ones a core has done before a GPU has begun

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
    raw = _minimise(fits, columns)
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


def _to_raw(point: Any, mean: Any, scale: Any, *, xp: ModuleType) -> Any:
    """Coefficients of standardised features as those of the columns, [fit, width + 1]."""
    coefficients = point[:, :-1] / scale
    last = point[:, -1] - (coefficients * mean).sum(axis=1)
    return xp.concatenate([coefficients, last[:, None]], axis=1)


def _minimise(fits: dict[str, np.ndarray], columns: Any) -> np.ndarray:
    """The best coefficients of the columns for each fit, with the intercept, [fit, width + 1].

    `columns` are [question, width + 1], the last one 1.
    """
    single, C = columns.astype(np.float32), fits["C"]
    half = _half_inverse(single, C)
    tolerance = (TOLERANCE / (1.0 + C)).clip(_FINEST)
    arrays = fits | {
        "point": np.zeros((len(C), columns.shape[1])),
        "tolerance": tolerance.clip(_SINGLE),
    }
    xp: ModuleType = np
    if columns.size >= _LARGE and (device := os.environ.get(FIT_DEVICE)):
        import torch as xp

        arrays = {name: xp.as_tensor(array, device=device) for name, array in arrays.items()}
        single, columns, half, tolerance = (
            xp.as_tensor(array, device=device) for array in (single, columns, half, tolerance)
        )
    point, _ = _Descent(arrays, single, half, xp).run(MAX_STEPS // 4)
    fine = arrays | {"point": point, "tolerance": tolerance}
    point, unfinished = _Descent(fine, columns, half, xp).run(MAX_STEPS)
    raw = _to_raw(point, arrays["mean"], arrays["scale"], xp=xp)
    raw = raw if xp is np else raw.cpu().numpy()
    if unfinished:
        from sklearn.exceptions import ConvergenceWarning  # slow to import, hardly needed

        warnings.warn(f"{unfinished} fits did not converge.", ConvergenceWarning, stacklevel=4)
    return raw


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
    gram = rows @ rows.T
    gram[np.diag_indices(len(rows))] += float(np.exp(np.log(1.0 / C + _BEND).mean()))
    return solve_triangular(np.linalg.cholesky(gram), rows, lower=True)


class _Descent:
    """L-BFGS on a batch of fits, each at a point [fit, width + 1].

    A point holds coefficients of features standardised by the fit's own rows, and the intercept.
    Arrays are of the module `xp`: numpy, or torch, whose functions have the same names.
    """

    _PER_FIT = ("y", "share", "C", "mean", "scale", "tolerance",
                "point", "logits", "chance", "slope")  # fmt: skip

    def __init__(self, fits: dict[str, Any], columns: Any, half: Any, xp: ModuleType) -> None:
        self.y, self.share, self.C = fits["y"], fits["share"], fits["C"]
        self.mean, self.scale, self.tolerance = fits["mean"], fits["scale"], fits["tolerance"]
        self.point, self.half, self.columns, self.xp = fits["point"], half, columns, xp
        # In the order of its rows OpenBLAS takes half the time for thin products.
        turned = xp is np and columns.dtype == np.float32
        self.turned = np.ascontiguousarray(columns.T) if turned else columns.T
        self.logits = self._as(self._logits(self.point), self.point)
        self.chance = self._expit(self.logits)
        self.slope = self._gradient()
        # Step, change of the gradient, and the inverse of their product.
        self.history: deque[tuple[Any, ...]] = deque(maxlen=MEMORY)

    def run(self, most: int) -> tuple[Any, int]:
        """The points once no slope is above its tolerance, and how many fits `most` steps left."""
        final, numbers = self.xp.zeros_like(self.point), np.arange(len(self.point))
        for _ in range(most):
            still_open = self._is_open()
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
        return final, int(self._is_open().sum())

    def _is_open(self) -> np.ndarray:
        """The fits [fit] whose slope is above their tolerance, in the host's memory."""
        still_open = self.xp.amax(abs(self.slope), 1) > self.tolerance
        return still_open if self.xp is np else still_open.cpu().numpy()

    def _step(self) -> None:
        """One step of each fit."""
        where = self.xp.where
        direction = -self._times_inverse_curvature(self.slope)
        along = self._logits(direction)
        length, self.chance = self._search_line(direction, along)
        step = length[:, None] * direction
        self.point, self.logits = self.point + step, self.logits + length[:, None] * along
        before, self.slope = self.slope, self._gradient()
        change = self.slope - before
        bend = self._dot(step, change)
        # A step too short to show the curvature is passed over.
        inverse = where(bend > 0, 1.0 / where(bend > 0, bend, 1.0), 0.0)
        self.history.append((step, change, inverse))

    def _times_inverse_curvature(self, vector: Any) -> Any:
        """L-BFGS's two loops around the preconditioner, on a vector [fit, width + 1]."""
        factors = []
        for step, change, inverse in reversed(self.history):
            factors.append(inverse * self._dot(step, vector))
            vector = vector - factors[-1][:, None] * change
        features = self._as(vector[:, :-1], self.half)
        reached = (features @ self.half.T) @ self.half
        inner = (vector[:, :-1] - reached) / (1.0 / self.C + _BEND)[:, None]
        vector = self.xp.concatenate([inner, vector[:, -1:] / _BEND], axis=1)
        for (step, change, inverse), factor in zip(self.history, reversed(factors), strict=True):
            vector = vector + (factor - inverse * self._dot(change, vector))[:, None] * step
        return vector

    def _search_line(self, direction: Any, along: Any) -> tuple[Any, Any]:
        """How far to go [fit], and p there: Newton's method along the line."""
        where, dot = self.xp.where, self._dot
        inner, square = (
            dot(part[:, :-1], direction[:, :-1]) / self.C for part in (self.point, direction)
        )
        along = self._as(along, self.point)
        weighted, chance = self.share * along, self.chance
        bends = weighted * along
        first = dot(weighted, chance - self.y) + inner
        bend = dot(bends, chance * (1.0 - chance)) + square
        length = -first / where(bend > 0, bend, 1.0)  # converged: no direction and no bend
        low, high = 0.0 * first, self.xp.full_like(first, np.inf)
        for _ in range(_TRIES):
            chance = self._expit(self.logits + length[:, None] * along)
            here = dot(weighted, chance - self.y) + inner + length * square
            searching = abs(here) > _ENOUGH * abs(first)
            if not searching.any():
                break
            low, high = where(here < 0, length, low), where(here < 0, high, length)
            bend = dot(bends, chance * (1.0 - chance)) + square
            moved = length - here / where(bend > 0, bend, 1.0)
            halved = where(high == np.inf, 2.0 * length, (low + high) / 2)
            moved = where((moved > low) & (moved < high), moved, halved)
            length = where(searching, moved, length)
        return length, chance

    def _gradient(self) -> Any:
        """The gradient of each fit's loss, [fit, width + 1]."""
        residual = self._as(self.share * (self.chance - self.y), self.columns)
        raw = self._as(residual @ self.columns, self.point)
        last = raw[:, -1:]
        inner = (raw[:, :-1] - self.mean * last) / self.scale
        penalty = self.point[:, :-1] / self.C[:, None]
        return self.xp.concatenate([inner + penalty, last], axis=1)

    def _logits(self, point: Any) -> Any:
        """Logits [fit, question] of points, in the precision of the columns."""
        raw = _to_raw(point, self.mean, self.scale, xp=self.xp)
        return self._as(raw, self.columns) @ self.turned

    def _dot(self, one: Any, other: Any) -> Any:
        """The inner products of rows, [fit]."""
        return self.xp.einsum("fw,fw->f", one, other)

    def _expit(self, logits: Any) -> Any:
        """The probabilities of logits, without overflow."""
        return 1.0 / (1.0 + self.xp.exp(-logits.clip(-700.0, 700.0)))

    def _as(self, array: Any, other: Any) -> Any:
        """An array in the precision of another one."""
        return array.astype(other.dtype, copy=False) if self.xp is np else array.to(other.dtype)
