"""L2-penalised logistic regression: many fits at once on one matrix, and uses of it.

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
from scipy.special import expit

from anchorscope.errors import UserError

TOLERANCE = 1e-6  # the largest slope of the mean loss (scikit-learn's `tol`), times 1 + C
_FINEST = 3e-8  # for weak penalties: logits of 5 and more need no fourth digit
_SINGLE = 2e-7  # a smaller slope is rounding in single precision
_CONSTANT = 1e-12  # of the mean square: a feature of less variance is constant in a fit's rows
MAX_STEPS = 1000
MEMORY = 5  # L-BFGS steps that are remembered
_ENOUGH = 0.3  # a line search ends where the slope is this share of what it began with
_TRIES = 30  # of a line search at most, and hardly ever more than two
_ROWS = 400  # rows behind the preconditioner
_CURVATURE = 0.15  # usual p (1 - p)
_NO_PENALTY = 1e8  # as C
# A coefficient per spread beyond this means that the columns separate the classes (one spread
# would multiply the odds by e to the 12th); the likelihood has no maximum then.
_SEPARATED = 12.0
_RIDGE = 1.0  # a light penalty on the sum of losses: enough to keep a separable fold finite
# A probe at chance keeps its order, near a probability of 1/2; a falling line would reverse it.
LEAST_SLOPE = 0.05
_LINE_STEPS, _LINE_SMALL, _HALVINGS = 50, 1e-10, 20

Coefficients = tuple[np.ndarray, np.ndarray]  # coefficients [fit, width], intercepts [fit]


class ProbeInputError(UserError, ValueError):
    """Error for invalid probe input: a UserError, and the ValueError scikit-learn expects."""


def fit_many(x: np.ndarray, y: np.ndarray, weights: np.ndarray, C: np.ndarray) -> Coefficients:
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
    share = weights / weights.sum(axis=1, keepdims=True)
    fits = _Fits(y + 0.0 * share, share, C, *_mean_and_scale(features, weights > 0))
    raw = _to_raw(_minimise(fits, columns), fits)
    coefficients = raw[:, :-1] / spread
    return coefficients, raw[:, -1] - coefficients @ middle


def class_weights(y: np.ndarray, learns: np.ndarray, balance: str) -> np.ndarray:
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
) -> Coefficients:
    """Round the fits' coefficients to single precision, as they are saved.

    Each intercept absorbs the change of the logit at the mean of the fit's own rows `learns`
    [fit, question]: far from zero that change would be much more than the rounding itself.
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


def fit_logistic(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Coefficients and standard errors [1 + column] without a penalty, the intercept first.

    `x` [row, column] is standardised. None where the likelihood has no maximum (one class,
    separation) or no unique one. scikit-learn has the coefficients and no errors; statsmodels has
    both, and gives 1022 ± 21812 where the classes are separated.
    """
    if len(np.unique(y)) < 2 or len(y) <= x.shape[1] + 1:
        return None
    everyone = np.ones((1, len(y)))
    coefficients, intercept = fit_many(x, y.astype(np.float64), everyone, np.array([_NO_PENALTY]))
    design = np.column_stack([np.ones(len(y)), x])
    fitted = np.r_[intercept, coefficients[0]]
    p = expit(design @ fitted)
    information = design.T @ (design * (p * (1 - p))[:, None])
    if np.abs(fitted[1:]).max() > _SEPARATED or np.linalg.cond(information) > 1e10:
        return None
    return fitted, np.sqrt(np.diag(np.linalg.inv(information)))


def cross_fitted_logits(
    x: np.ndarray, y: np.ndarray, fold: np.ndarray, *, least: int = 1
) -> np.ndarray:
    """Cross-fitted logits [row] of a logistic model on a few columns x [row, column].

    NaN where the other folds hold fewer than `least` of a class.
    """
    logits = np.full(len(y), np.nan)
    learns = fold != np.unique(fold)[:, None]  # [fold, row]
    ones, rows = learns @ (y == 1).astype(int), learns.sum(axis=1)
    learns = learns[np.minimum(ones, rows - ones) >= least]
    if len(learns):
        C = learns.sum(axis=1) / _RIDGE
        coefficients, intercept = fit_many(x, y.astype(np.float64), learns.astype(float), C)
        at, row = np.nonzero(~learns)
        logits[row] = (x @ coefficients.T + intercept)[row, at]
    return logits


def platt_lines(logits: np.ndarray, z: np.ndarray, weights: np.ndarray) -> Coefficients:
    """Slope and intercept [fit] of log-odds = slope · logit + intercept, fitted to z [question].

    `logits` and `weights` are [fit, question]; weight 0 leaves a question out. The targets are
    Platt's, drawn a little towards each other, so that separated classes have a finite line.
    Each fit has a column of its own, for which `fit_many` would take sixteen times as long.
    """
    weights = weights / weights.sum(axis=1, keepdims=True)
    used = weights > 0
    wrong, right = (np.sum(used & (z == value), axis=1, keepdims=True) for value in (1, 0))
    target = np.where(z == 1, (wrong + 1) / (wrong + 2), 1 / (right + 2))
    slope, intercept = _newton(logits, target, weights)
    flat = slope < LEAST_SLOPE
    if flat.any():  # the slope is fixed, and only the intercept is fitted
        offset, none = LEAST_SLOPE * logits[flat], np.zeros_like(logits[flat])
        slope[flat] = LEAST_SLOPE
        intercept[flat] = _newton(none, target[flat], weights[flat], offset=offset)[1]
    return slope, intercept


def _newton(
    logits: np.ndarray,
    target: np.ndarray,
    weights: np.ndarray,
    *,
    offset: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Fit lines [2, fit] of least logistic loss on logits [fit, question], plus `offset`."""

    def moved(line: np.ndarray) -> np.ndarray:
        return line[0][:, None] * logits + line[1][:, None] + offset

    def mean_loss(line: np.ndarray) -> np.ndarray:
        at = moved(line)
        return (weights * (np.logaddexp(0.0, at) - target * at)).sum(axis=1)

    line = np.zeros((2, len(logits)))
    loss = mean_loss(line)
    for _ in range(_LINE_STEPS):
        p = expit(moved(line))
        residual, curvature = weights * (p - target), weights * p * (1 - p)
        slope = np.stack([(residual * logits).sum(1), residual.sum(1)])
        # Equal logits leave the slope open; the 1e-12 then leaves it where it is.
        a = (curvature * logits**2).sum(1) + 1e-12
        b, c = (curvature * logits).sum(1), curvature.sum(1)
        step = np.stack([b * slope[1] - c * slope[0], b * slope[0] - a * slope[1]])
        line, before = line + step / (a * c - b**2), line
        for _ in range(_HALVINGS):
            after = mean_loss(line)
            worse = after > loss + 1e-15
            if not worse.any():
                break
            line = np.where(worse, (line + before) / 2, line)
        loss = after
        if np.abs(line - before).max() < _LINE_SMALL:
            break
    return line


class _Fits(NamedTuple):
    """The data of a batch of fits; features are standardised by each fit's own rows."""

    y: np.ndarray  # [fit, question]
    share: np.ndarray  # [fit, question], weights that add up to 1
    C: np.ndarray  # [fit]
    mean: np.ndarray  # [fit, width]
    scale: np.ndarray  # [fit, width]


def _mean_and_scale(x: np.ndarray, learns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each fit's rows, [fit, width] each.

    A constant feature has an infinite deviation, so that its weight is exactly 0.
    """
    part = learns / learns.sum(axis=1, keepdims=True)
    mean, square = part @ x, part @ x**2
    variance = square - mean**2
    variance[variance <= _CONSTANT * square] = np.inf
    return mean, variance**0.5


def _to_raw(point: np.ndarray, fits: _Fits) -> np.ndarray:
    """Convert coefficients of standardised features to raw columns, [fit, width + 1]."""
    coefficients = point[:, :-1] / fits.scale
    last = point[:, -1] - (coefficients * fits.mean).sum(axis=1)
    return np.concatenate([coefficients, last[:, None]], axis=1)


def _minimise(fits: _Fits, columns: np.ndarray) -> np.ndarray:
    """Minimise the loss of each fit; returns its coefficients and intercept [fit, width + 1].

    `columns` are [question, width + 1], the last one 1.
    """
    single = columns.astype(np.float32)
    half = _half_inverse(single, fits.C)
    tolerance = (TOLERANCE / (1.0 + fits.C)).clip(_FINEST)
    point = np.zeros((len(fits.C), columns.shape[1]))
    coarse = _Descent(fits, point, single, half, tolerance.clip(_SINGLE))
    point, _ = coarse.run(MAX_STEPS // 4)
    point, unfinished = _Descent(fits, point, columns, half, tolerance).run(MAX_STEPS)
    if unfinished:
        from sklearn.exceptions import ConvergenceWarning  # slow to import, hardly needed

        warnings.warn(f"{unfinished} fits did not converge.", ConvergenceWarning, stacklevel=4)
    return point


def _half_inverse(columns: np.ndarray, C: np.ndarray) -> np.ndarray:
    """Preconditioner H [row, width]: (1 - H'H) / r approximates the inverse curvature.

    The curvature is about r + S'S with S some rows of the matrix, scaled. By Woodbury's identity
    its inverse is (1 - S'(r + SS')⁻¹S) / r, so LH = S where LL' = r + SS'. r is 1/C plus what the
    rows left out add in directions that these do not reach: with 1/C alone weak penalties take up
    to four times the steps. One r serves all fits inside the inverse; where their own differ, more
    steps are needed.
    """
    rows = columns[:: -(-len(columns) // _ROWS), :-1]
    rows = (_CURVATURE / len(rows)) ** 0.5 * rows
    if len(rows) > rows.shape[1]:  # narrow states: a triangle of their width has the same S'S
        rows = np.asarray(np.linalg.qr(rows, mode="r"))
    gram = rows @ rows.T
    gram[np.diag_indices(len(rows))] += float(np.exp(np.log(1.0 / C + _CURVATURE).mean()))
    return solve_triangular(np.linalg.cholesky(gram), rows, lower=True)


class _Descent:
    """L-BFGS on a batch of fits, each at a point [fit, width + 1].

    A point holds coefficients of features standardised by the fit's own rows, and the intercept.
    """

    def __init__(
        self,
        fits: _Fits,
        point: np.ndarray,
        columns: np.ndarray,
        half: np.ndarray,
        tolerance: np.ndarray,
    ) -> None:
        self.fits, self.tolerance = fits, tolerance
        self.point, self.half, self.columns = point, half, columns
        # In the order of its rows OpenBLAS takes half the time for thin products.
        single = columns.dtype == np.float32
        self.turned = np.ascontiguousarray(columns.T) if single else columns.T
        self.logits = self._logits(point).astype(np.float64, copy=False)
        self.p = _probability(self.logits)
        self.slope = self._gradient()
        # Step, change of the gradient, and the inverse of their product.
        self.history: deque[tuple[np.ndarray, ...]] = deque(maxlen=MEMORY)

    def run(self, most: int) -> tuple[np.ndarray, int]:
        """Descend until no slope is above its tolerance; count the fits that `most` steps left."""
        final, numbers = np.zeros_like(self.point), np.arange(len(self.point))
        for _ in range(most):
            still_open = np.abs(self.slope).max(axis=1) > self.tolerance
            if not still_open.all():
                final[numbers] = self.point
                numbers = numbers[still_open]
                if not len(numbers):
                    return final, 0
                self._keep(still_open)
            self._step()
        final[numbers] = self.point
        return final, int((np.abs(self.slope).max(axis=1) > self.tolerance).sum())

    def _keep(self, fits: np.ndarray) -> None:
        """Drop all fits but these, [fit] bool."""
        self.fits = _Fits(*(part[fits] for part in self.fits))
        for name in ("tolerance", "point", "logits", "p", "slope"):
            setattr(self, name, getattr(self, name)[fits])
        kept = (tuple(part[fits] for part in step) for step in self.history)
        self.history = deque(kept, maxlen=MEMORY)

    def _step(self) -> None:
        """Take one L-BFGS step of each fit."""
        direction = -self._times_inverse_curvature(self.slope)
        along = self._logits(direction)
        length, self.p = self._search_line(direction, along)
        step = length[:, None] * direction
        self.point, self.logits = self.point + step, self.logits + length[:, None] * along
        before, self.slope = self.slope, self._gradient()
        change = self.slope - before
        product = _dot(step, change)
        # A step too short to show the curvature is ignored.
        inverse = np.where(product > 0, 1.0 / np.where(product > 0, product, 1.0), 0.0)
        self.history.append((step, change, inverse))

    def _times_inverse_curvature(self, vector: np.ndarray) -> np.ndarray:
        """L-BFGS's two loops around the preconditioner, on a vector [fit, width + 1]."""
        factors = []
        for step, change, inverse in reversed(self.history):
            factors.append(inverse * _dot(step, vector))
            vector = vector - factors[-1][:, None] * change
        features = vector[:, :-1].astype(self.half.dtype)
        reached = (features @ self.half.T) @ self.half
        inner = (vector[:, :-1] - reached) / (1.0 / self.fits.C + _CURVATURE)[:, None]
        vector = np.concatenate([inner, vector[:, -1:] / _CURVATURE], axis=1)
        for (step, change, inverse), factor in zip(self.history, reversed(factors), strict=True):
            vector = vector + (factor - inverse * _dot(change, vector))[:, None] * step
        return vector

    def _search_line(
        self, direction: np.ndarray, along: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Search each fit's step size [fit] by Newton's method; return it with p there."""
        y, share, C = self.fits.y, self.fits.share, self.fits.C
        inner, square = (
            _dot(part[:, :-1], direction[:, :-1]) / C for part in (self.point, direction)
        )
        weighted, p = share * along, self.p
        first = _dot(weighted, p - y) + inner
        curvature = _dot(weighted * along, p * (1.0 - p)) + square
        length = -first / np.where(curvature > 0, curvature, 1.0)  # 0 where converged
        low, high = 0.0 * first, np.full_like(first, np.inf)
        for _ in range(_TRIES):
            p = _probability(self.logits + length[:, None] * along)
            here = _dot(weighted, p - y) + inner + length * square
            searching = abs(here) > _ENOUGH * abs(first)
            if not searching.any():
                break
            low, high = np.where(here < 0, length, low), np.where(here < 0, high, length)
            curvature = _dot(weighted * along, p * (1.0 - p)) + square
            moved = length - here / np.where(curvature > 0, curvature, 1.0)
            halved = np.where(np.isinf(high), 2.0 * length, (low + high) / 2)
            moved = np.where((moved > low) & (moved < high), moved, halved)
            length = np.where(searching, moved, length)
        return length, p

    def _gradient(self) -> np.ndarray:
        """The gradient of each fit's loss, [fit, width + 1]."""
        fits = self.fits
        residual = (fits.share * (self.p - fits.y)).astype(self.columns.dtype, copy=False)
        raw = (residual @ self.columns).astype(np.float64, copy=False)
        last = raw[:, -1:]
        inner = (raw[:, :-1] - fits.mean * last) / fits.scale
        return np.concatenate([inner + self.point[:, :-1] / fits.C[:, None], last], axis=1)

    def _logits(self, point: np.ndarray) -> np.ndarray:
        """Logits [fit, question] of points, in the precision of the columns."""
        return _to_raw(point, self.fits).astype(self.columns.dtype, copy=False) @ self.turned


def _dot(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The inner products of rows, [fit]."""
    return np.einsum("fw,fw->f", one, other)


def _probability(logits: np.ndarray) -> np.ndarray:
    """The probabilities of logits, without overflow; faster than scipy's expit."""
    return 1.0 / (1.0 + np.exp(-logits.clip(-700.0, 700.0)))
