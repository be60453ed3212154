"""Fit many L2-penalised logistic regressions at once, on one matrix of states or a stack of them.

The probes of a layer (kinds × folds) learn from rows of the same states, so that a step of all of
them is two matrix products; of many layers, two stacks of products. A fit gives the questions that
it leaves out weight 0, and its standardisation is two vectors: no row is copied.

The solver is L-BFGS, preconditioned by the curvature of a few rows. Logits are linear in the
coefficients, so the line search needs no product of its own. Steps are taken with the matrix in
single precision, in half the time, and then continued in double precision until the gradient is
small enough, which it mostly is at once. Converged fits leave the batch. The same code runs on
numpy arrays and on torch tensors, on any device.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
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
# On a GPU a look at what has converged waits for its queue, and dropping fits copies the others.
_LOOK, _WORTH = 4, 0.7  # steps between two looks; drop where at most this share of the batch stays

Array = Any  # numpy.ndarray or torch.Tensor
Made = tuple[np.ndarray, np.ndarray]  # coefficients [fit, width], intercepts [fit]


class ProbeInputError(UserError, ValueError):
    """A UserError to the command line; the ValueError that scikit-learn's tools expect."""


class Request(NamedTuple):
    """Fits to make on the states of a layer: the arguments of `fit_many` beside the states."""

    y: np.ndarray  # [fit, question], 0 or 1
    weights: np.ndarray  # [fit, question], 0: left out
    C: np.ndarray  # [fit]


def fit_many(x: Array, y: Array, weights: Array, C: Array) -> tuple[Array, Array]:
    """Coefficients [fit, width] and intercepts [fit] of fits that share states x [question, width].

    A fit minimises the mean of its losses, weighted by `weights` [fit, question] (0: left out),
    plus |coefficients|² / 2C on features standardised by its own rows. `y` is from 0 to 1,
    [question] or [fit, question]; `C` is [fit]. The logit is x · coefficients + intercept, of raw
    states. Everything is in double precision. With x [layer, question, width] the fits of all
    layers are made at once; `y` and `weights` may then differ by layer, and so do the results.
    """
    if x.ndim == 2:
        coefficients, intercept = fit_many(x[None], y, weights, C)
        return coefficients[0], intercept[0]
    xp = namespace(x)
    used = (weights > 0).reshape(-1, weights.shape[-1]).any(0)
    if not bool(used.all()):
        x, y, weights = x[:, used], y[..., used], weights[..., used]
    share = weights / weights.sum(-1)[..., None] + xp.zeros_like(x[:, :1, :1])
    columns = xp.concatenate([x, xp.ones_like(x[..., :1])], axis=-1)
    features, middle = columns[..., :-1], x.mean(1)[:, None]
    features -= middle
    spread = (features**2).mean(1)[:, None] ** 0.5
    # The mean of equal numbers is rounded, and leaves a spread of the rounding's size.
    spread = xp.where(spread > 10 * np.finfo(float).eps * abs(middle), spread, 1.0)
    features /= spread
    fits = {"y": y + 0.0 * share, "share": share, "C": C + 0.0 * share[..., 0]}
    fits["mean"], fits["scale"] = _mean_and_scale(features, weights > 0)
    raw = _to_raw(_minimise(fits, columns), fits["mean"], fits["scale"])
    coefficients = raw[..., :-1] / spread
    return coefficients, raw[..., -1] - (coefficients * middle).sum(-1)


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


def namespace(x: Array) -> Any:
    """The library of an array: numpy, or torch where its caller has loaded it."""
    return np if isinstance(x, np.ndarray) else sys.modules["torch"]


def to_numpy(x: Array) -> np.ndarray:
    """The same numbers as a numpy array."""
    return x if isinstance(x, np.ndarray) else x.cpu().numpy()


def solved_lower(factor: Array, right: Array) -> Array:
    """Solve lower triangles [..., row, row] for right-hand sides [..., row, column]."""
    if not isinstance(right, np.ndarray):
        return namespace(right).linalg.solve_triangular(factor, right, upper=False)
    if right.ndim == 2:
        return solve_triangular(factor, right, lower=True)
    return np.stack([solved_lower(*pair) for pair in zip(factor, right, strict=True)])


def _mean_and_scale(x: Array, learns: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each fit's rows, [layer, fit, width] each.

    A constant feature has an infinite deviation, so that its weight is exactly 0.
    """
    part = learns * namespace(x).ones_like(x[:1, :1, :1]) / learns.sum(-1)[..., None]
    mean, square = part @ x, part @ x**2
    variance = square - mean**2
    variance[variance <= _CONSTANT * square] = np.inf
    return mean, variance**0.5


def _to_raw(point: Array, mean: Array, scale: Array) -> Array:
    """Coefficients of standardised features as those of the columns, [layer, fit, width + 1]."""
    coefficients = point[..., :-1] / scale
    shift = (coefficients * mean).sum(-1)
    last = (point[..., -1] - shift)[..., None]
    return namespace(point).concatenate([coefficients, last], axis=-1)


def _minimise(fits: dict[str, Array], columns: Array) -> Array:
    """The best point of each fit, [layer, fit, width + 1].

    `columns` are [layer, question, width + 1], the last one 1.
    """
    xp, C = namespace(columns), fits["C"]
    single = xp.asarray(columns, dtype=xp.float32)
    half = _half_inverse(single, C)
    tolerance = (TOLERANCE / (1.0 + C)).clip(_FINEST, None)
    point = xp.zeros_like(columns[:, :1]) * C[..., None]
    coarse = fits | {"tolerance": tolerance.clip(_SINGLE, None)}
    point, _ = _Descent(coarse, point, single, half).run(MAX_STEPS // 4)
    fine = fits | {"tolerance": tolerance}
    point, unfinished = _Descent(fine, point, columns, half).run(MAX_STEPS)
    if unfinished:
        from sklearn.exceptions import ConvergenceWarning  # slow to import, hardly needed

        warnings.warn(f"{unfinished} fits did not converge.", ConvergenceWarning, stacklevel=4)
    return point


def _half_inverse(columns: Array, C: Array) -> Array:
    """H [layer, row, width], of which (1 - H'H) / r approximates the inverse curvature.

    The curvature is about r + S'S with S some rows of the matrix, scaled. By Woodbury's identity
    its inverse is (1 - S'(r + SS')⁻¹S) / r, so LH = S where LL' = r + SS'. r is 1/C and what the
    rows left out add in directions that these do not reach: with 1/C alone weak penalties take up
    to four times the steps. The r inside serves all fits; where theirs differ the steps make up
    for it.
    """
    xp = namespace(columns)
    rows = columns[:, :: -(-columns.shape[1] // _ROWS), :-1]
    count = rows.shape[1]
    rows = (_BEND / count) ** 0.5 * rows
    gram = rows @ rows.swapaxes(1, 2)
    gram[:, range(count), range(count)] += float(xp.exp(xp.log(1.0 / C + _BEND).mean()))
    return solved_lower(xp.linalg.cholesky(gram), rows)


class _Descent:
    """L-BFGS on a batch of fits, each at a point [layer, fit, width + 1].

    A point holds coefficients of features standardised by the fit's own rows, and the intercept.
    """

    _PER_FIT = ("y", "share", "C", "mean", "scale", "tolerance",
                "point", "logits", "chance", "slope")  # fmt: skip

    def __init__(self, fits: dict[str, Array], point: Array, columns: Array, half: Array) -> None:
        self.y, self.share, self.C = fits["y"], fits["share"], fits["C"]
        self.mean, self.scale, self.tolerance = fits["mean"], fits["scale"], fits["tolerance"]
        self.xp, self.point, self.half = namespace(columns), point, half
        self.in_numpy = isinstance(columns, np.ndarray)
        self._set_columns(columns)
        self.logits = self.xp.asarray(self._logits(point), dtype=self.xp.float64)
        self.chance = self._expit(self.logits)
        self.slope = self._gradient()
        # Step, change of the gradient, and the inverse of their product.
        self.history: deque[tuple[Array, Array, Array]] = deque(maxlen=MEMORY)

    def run(self, most: int) -> tuple[Array, int]:
        """The points once no slope is above its tolerance, and how many fits `most` steps left."""
        final = self.xp.zeros_like(self.point)
        layers, fits = (np.arange(count) for count in final.shape[:2])
        for number in range(most):
            open_ = self._open()
            if self.in_numpy or number % _LOOK == 0:
                still = to_numpy(open_)
                of_layers, of_fits = np.asarray(still.any(1)), np.asarray(still.any(0))
                if of_layers.mean() * of_fits.mean() < (1.0 if self.in_numpy else _WORTH):
                    final[layers[:, None], fits] = self.point
                    layers, fits = layers[of_layers], fits[of_fits]
                    if not len(layers):
                        return final, 0
                    self._keep(of_layers, of_fits)
                    open_ = self._open()
            self._step(open_)
        final[layers[:, None], fits] = self.point
        return final, int(to_numpy(self._open()).sum())

    def _open(self) -> Array:
        """Which fits have not converged, [layer, fit] bool."""
        return self.xp.linalg.norm(self.slope, np.inf, -1) > self.tolerance

    def _keep(self, layers: np.ndarray, fits: np.ndarray) -> None:
        """Drop all but these layers and fits, [layer] and [fit] bool, from the batch."""
        layers, fits = np.flatnonzero(layers), np.flatnonzero(fits)
        if not self.in_numpy:  # places on the device: a mask would wait for its queue
            layers, fits = (self.xp.as_tensor(n, device=self.point.device) for n in (layers, fits))
        if len(layers) < len(self.columns):
            self._set_columns(self.columns[layers])
            self.half = self.half[layers]
        for name in self._PER_FIT:
            setattr(self, name, getattr(self, name)[layers][:, fits])
        kept = (tuple(part[layers][:, fits] for part in step) for step in self.history)
        self.history = deque(kept, maxlen=MEMORY)

    def _step(self, open_: Array) -> None:
        """One step of each fit that is open."""
        xp = self.xp
        direction = -self._times_inverse_curvature(self.slope)
        # In a single layer of arrays, what has converged is gone already.
        if len(open_) > 1 or not self.in_numpy:
            direction = xp.where(open_[..., None], direction, 0.0)
        along = self._logits(direction)
        length, self.chance = self._search_line(direction, along)
        step = length[..., None] * direction
        self.point, self.logits = self.point + step, self.logits + length[..., None] * along
        before, self.slope = self.slope, self._gradient()
        change = self.slope - before
        bend = self._dot(step, change)
        # A step too short to show the curvature is passed over.
        inverse = xp.where(bend > 0, 1.0 / xp.where(bend > 0, bend, 1.0), 0.0)
        self.history.append((step, change, inverse))

    def _times_inverse_curvature(self, vector: Array) -> Array:
        """L-BFGS's two loops around the preconditioner, on a vector [layer, fit, width + 1]."""
        xp, factors = self.xp, []
        for step, change, inverse in reversed(self.history):
            factors.append(inverse * self._dot(step, vector))
            vector = vector - factors[-1][..., None] * change
        features = xp.asarray(vector[..., :-1], dtype=self.half.dtype)
        known = (features @ self.half.swapaxes(1, 2)) @ self.half
        inner = (vector[..., :-1] - known) / (1.0 / self.C + _BEND)[..., None]
        vector = xp.concatenate([inner, vector[..., -1:] / _BEND], axis=-1)
        for (step, change, inverse), factor in zip(self.history, reversed(factors), strict=True):
            vector = vector + (factor - inverse * self._dot(change, vector))[..., None] * step
        return vector

    def _search_line(self, direction: Array, along: Array) -> tuple[Array, Array]:
        """How far to go [layer, fit], and p there: Newton's method along the line."""
        xp = self.xp
        inner, square = (
            self._dot(part[..., :-1], direction[..., :-1]) / self.C
            for part in (self.point, direction)
        )
        weighted, chance = self.share * along, self.chance
        bends = weighted * along
        first = self._dot(weighted, chance - self.y) + inner
        bend = self._dot(bends, chance * (1.0 - chance)) + square
        length = -first / xp.where(bend > 0, bend, 1.0)  # converged: no direction and no bend
        low, high = 0.0 * first, xp.full_like(first, np.inf)
        for number in range(_TRIES):
            chance = self._expit(self.logits + length[..., None] * along)
            here = self._dot(weighted, chance - self.y) + inner + length * square
            searching = abs(here) > _ENOUGH * abs(first)
            # On a GPU one more try costs less than to ask every time whether one is needed.
            if (number % 2 or self.in_numpy) and not bool(searching.any()):
                break
            low, high = xp.where(here < 0, length, low), xp.where(here < 0, high, length)
            bend = self._dot(bends, chance * (1.0 - chance)) + square
            moved = length - here / xp.where(bend > 0, bend, 1.0)
            halved = xp.where(xp.isinf(high), 2.0 * length, (low + high) / 2)
            moved = xp.where((moved > low) & (moved < high), moved, halved)
            length = xp.where(searching, moved, length)
        return length, chance

    def _gradient(self) -> Array:
        """The gradient of each fit's loss, [layer, fit, width + 1]."""
        residual = self.share * (self.chance - self.y)
        raw = self.xp.asarray(residual, dtype=self.columns.dtype) @ self.columns
        raw = self.xp.asarray(raw, dtype=self.xp.float64)
        last = raw[..., -1:]
        inner = (raw[..., :-1] - self.mean * last) / self.scale
        penalty = self.point[..., :-1] / self.C[..., None]
        return self.xp.concatenate([inner + penalty, last], axis=-1)

    def _logits(self, point: Array) -> Array:
        """Logits [layer, fit, question] of points, in the precision of the columns."""
        raw = _to_raw(point, self.mean, self.scale)
        return self.xp.asarray(raw, dtype=self.columns.dtype) @ self.turned

    def _set_columns(self, columns: Array) -> None:
        self.columns, self.turned = columns, columns.swapaxes(1, 2)
        if self.in_numpy and columns.dtype == np.float32:
            # In the order of its rows OpenBLAS takes half the time for thin products.
            self.turned = np.ascontiguousarray(self.turned)

    def _dot(self, one: Array, other: Array) -> Array:
        if self.in_numpy:
            return np.einsum("lfw,lfw->lf", one, other)
        return self.xp.linalg.vecdot(one, other)  # torch's einsum is a dozen calls

    def _expit(self, logits: Array) -> Array:
        return 1.0 / (1.0 + self.xp.exp(-logits.clip(-700.0, 700.0)))
