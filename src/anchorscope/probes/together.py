"""A batch of penalised logistic losses on the matrices of layers, minimised together by L-BFGS.

Logits are linear in the coefficients, so that a line search needs no product of its own: a step is
two products for all fits of a layer. What has converged leaves the batch. The steps are done with
the matrix in single precision, which takes half the time; from there it goes on in double precision
until the slope is small enough, which mostly it is at once.
"""

from __future__ import annotations

import warnings
from collections import deque
from copy import copy
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from anchorscope.probes.curvature import Array, Guess, namespace, to_numpy

TOLERANCE = 1e-6  # the largest slope of the mean loss (scikit-learn's `tol`), times 1 + C
_FINEST = 3e-8  # for weak penalties: logits of 5 and more need no fourth digit
# Below this a slope worked out in single precision is rounding.
_SINGLE = 2e-7
MAX_STEPS = 1000
MEMORY = 5  # steps that tell of the curvature
_ENOUGH = 0.3  # a line search ends where the slope is this share of what it began with
_TRIES = 30  # at most, and hardly ever more than two
# On a GPU a look at what has converged makes it wait, and may let another process have it first; to
# take it out of the batch copies everything else. Until then it does not move.
_LOOK, _WORTH = 4, 0.7  # steps between two looks; the share of the batch that is left to go on with


@dataclass(frozen=True, kw_only=True)
class Fits:
    """Fits under way; a point is [layer, fit, width + 1], of features standardised by the fit's
    rows.
    """

    y: Array  # [layer, fit, question]
    share: Array  # [layer, fit, question], sums to 1
    C: Array  # [layer, fit]
    mean: Array  # [layer, fit, width]
    scale: Array  # [layer, fit, width]

    @property
    def xp(self) -> Any:
        """The library the arrays are of."""
        return namespace(self.share)

    def to_raw(self, point: Array) -> Array:
        """The coefficients of the columns as they are, [layer, fit, width + 1]."""
        coefficients = point[..., :-1] / self.scale
        shift = (coefficients * self.mean).sum(-1)
        return self.xp.concatenate([coefficients, (point[..., -1] - shift)[..., None]], axis=-1)

    def slope(self, products: Products, chance: Array, point: Array) -> Array:
        """The gradient [layer, fit, width + 1]."""
        raw = products.by_rows(self.share * (chance - self.y))
        last = raw[..., -1:]
        of_features = (raw[..., :-1] - self.mean * last) / self.scale
        penalty = point[..., :-1] / self.C[..., None]
        return self.xp.concatenate([of_features + penalty, last], axis=-1)

    def take(self, layers: Array, fits: Array) -> Fits:
        """Some of the fits alone, of some of the layers, by their numbers."""
        return Fits(
            **{of.name: _taken(getattr(self, of.name), layers, fits) for of in fields(self)}
        )


class Products:
    """Products with the columns [layer, question, width + 1], in their precision or in single."""

    def __init__(self, columns: Array, *, single: bool) -> None:
        self.xp = namespace(columns)
        self.columns = self.xp.asarray(columns, dtype=self.xp.float32) if single else columns
        turned = self.columns.swapaxes(1, 2)
        # In the order of its rows OpenBLAS takes half the time for thin products.
        laid_out = single and isinstance(turned, np.ndarray)
        self.turned = np.ascontiguousarray(turned) if laid_out else turned

    def take(self, layers: Array) -> Products:
        """Those of some layers alone, by their numbers."""
        if len(layers) == len(self.columns):
            return self
        some = copy(self)
        some.columns = self.columns[layers]
        own = isinstance(self.turned, np.ndarray)  # of torch it is another view of the columns
        some.turned = self.turned[layers] if own else some.columns.swapaxes(1, 2)
        return some

    def by_columns(self, raw: Array) -> Array:
        """Logits [layer, fit, question] of coefficients [layer, fit, width + 1]."""
        return self.xp.asarray(raw, dtype=self.columns.dtype) @ self.turned

    def by_rows(self, residual: Array) -> Array:
        """Sums of the rows [layer, fit, width + 1], each times its residual, by fit."""
        product = self.xp.asarray(residual, dtype=self.columns.dtype) @ self.columns
        return self.xp.asarray(product, dtype=self.xp.float64)


def minimise(fits: Fits, columns: Array) -> Array:
    """The best point of each fit, [layer, fit, width + 1].

    `columns` are [layer, question, width + 1], the last one 1.
    """
    single = Products(columns, single=True)
    guess = Guess(single.columns, fits.C)
    point = fits.xp.zeros_like(columns[:, :1]) * fits.C[..., None]
    tolerance = TOLERANCE / (1.0 + fits.C)
    tolerance = fits.xp.where(tolerance > _FINEST, tolerance, _FINEST)
    coarse = fits.xp.where(tolerance > _SINGLE, tolerance, _SINGLE)
    point = _descend(_Descent(fits, point, single, guess, coarse), most=MAX_STEPS // 4)
    double = Products(columns, single=False)
    return _descend(_Descent(fits, point, double, guess, tolerance), most=MAX_STEPS)


def _descend(descent: _Descent, *, most: int) -> Array:
    """The points, gone down until no slope is above its tolerance, or `most` steps."""
    final = descent.xp.zeros_like(descent.point)
    layers, numbers = (np.arange(count) for count in final.shape[:2])
    there = not isinstance(final, np.ndarray)
    for number in range(most):
        open_ = descent.open
        if not there or number % _LOOK == 0:
            still = to_numpy(open_)
            of_layers, of_fits = np.asarray(still.any(1)), np.asarray(still.any(0))
            share = of_layers.mean() * of_fits.mean()
            if share < (_WORTH if there else 1.0):
                final[layers[:, None], numbers] = descent.point
                layers, numbers = layers[of_layers], numbers[of_fits]
                if not len(layers):
                    return final
                descent.keep(of_layers, of_fits)
                open_ = descent.open
        descent.step(open_)
    if descent.products.columns.dtype == descent.xp.float64:
        count = int(to_numpy(descent.open).sum())
        if count:
            from sklearn.exceptions import ConvergenceWarning  # slow to import, hardly needed

            warnings.warn(f"{count} fits did not converge.", ConvergenceWarning, stacklevel=4)
    final[layers[:, None], numbers] = descent.point
    return final


class _Descent:
    """Where each fit is, [layer, fit, ...], and what its last steps tell of the curvature."""

    def __init__(
        self, fits: Fits, point: Array, products: Products, guess: Guess, tolerance: Array
    ) -> None:
        self.fits, self.products, self.guess, self.xp = fits, products, guess, fits.xp
        self.point, self.tolerance = point, tolerance
        self.logits = self._double(products.by_columns(fits.to_raw(point)))
        self.chance = _expit(self.logits, self.xp)
        self.slope = fits.slope(products, self.chance, point)
        self.history: deque[tuple[Array, Array, Array]] = deque(maxlen=MEMORY)

    @property
    def open(self) -> Array:
        """Which fits have not converged, [layer, fit] bool."""
        return self.xp.linalg.norm(self.slope, np.inf, -1) > self.tolerance

    def keep(self, layers: np.ndarray, fits: np.ndarray) -> None:
        """Lets all but some fits of some layers leave the batch."""
        layers, fits = (_numbers(of, self.point) for of in (layers, fits))
        self.fits = self.fits.take(layers, fits)
        self.products, self.guess = self.products.take(layers), self.guess.take(layers)
        for name in ("point", "tolerance", "logits", "chance", "slope"):
            setattr(self, name, _taken(getattr(self, name), layers, fits))
        kept = (tuple(_taken(of, layers, fits) for of in step) for step in self.history)
        self.history = deque(kept, maxlen=MEMORY)

    def step(self, open_: Array) -> None:
        """One step of each fit that is open."""
        fits, xp = self.fits, self.xp
        direction = -_curved(self.slope, self.history, self.guess, fits.C)
        # Of one layer of arrays, what has converged is gone already.
        if len(open_) > 1 or not isinstance(open_, np.ndarray):
            direction = xp.where(open_[..., None], direction, 0.0)
        along = self.products.by_columns(fits.to_raw(direction))
        length, self.chance = _line(fits, self.point, direction, self.logits, along, self.chance)
        step = length[..., None] * direction
        self.point, self.logits = self.point + step, self.logits + length[..., None] * along
        before, self.slope = self.slope, fits.slope(self.products, self.chance, self.point)
        change = self.slope - before
        bend = _dot(step, change, xp)
        # A step too short to tell of the curvature is passed over.
        inverse = xp.where(bend > 0, 1.0 / xp.where(bend > 0, bend, 1.0), 0.0)
        self.history.append((step, change, inverse))

    def _double(self, of: Array) -> Array:
        return self.xp.asarray(of, dtype=self.xp.float64)


def _curved(slope: Array, history: deque, guess: Guess, C: Array) -> Array:
    """The slope times the inverse curvature that the last steps tell of, shaped as it is."""
    xp, vector, factors = guess.xp, slope, []
    for step, change, inverse in reversed(history):
        factors.append(inverse * _dot(step, vector, xp))
        vector = vector - factors[-1][..., None] * change
    vector = guess(vector, C)
    for (step, change, inverse), factor in zip(history, reversed(factors), strict=True):
        vector = vector + (factor - inverse * _dot(change, vector, xp))[..., None] * step
    return vector


def _line(fits: Fits, point, direction, logits, along, chance) -> tuple[Array, Array]:
    """How far to go [layer, fit], and p there: Newton's method along the line."""
    xp, share = fits.xp, fits.share
    inner, square = (
        _dot(of[..., :-1], direction[..., :-1], xp) / fits.C for of in (point, direction)
    )
    weighted = share * along
    bends = weighted * along
    first = _dot(weighted, chance - fits.y, xp) + inner
    bend = _dot(bends, chance * (1.0 - chance), xp) + square
    length = -first / xp.where(bend > 0, bend, 1.0)  # no direction, no bend: what has converged
    low, high = 0.0 * first, xp.full_like(first, np.inf)
    for number in range(_TRIES):
        chance = _expit(logits + length[..., None] * along, xp)
        here = _dot(weighted, chance - fits.y, xp) + inner + length * square
        searching = abs(here) > _ENOUGH * abs(first)
        # A try that nobody needs changes nothing; on a GPU it costs less than to ask every time.
        if (number % 2 or isinstance(here, np.ndarray)) and not bool(searching.any()):
            break
        low, high = xp.where(here < 0, length, low), xp.where(here < 0, high, length)
        bend = _dot(bends, chance * (1.0 - chance), xp) + square
        moved = length - here / xp.where(bend > 0, bend, 1.0)
        inside = (moved > low) & (moved < high)
        moved = xp.where(inside, moved, xp.where(xp.isinf(high), 2.0 * length, (low + high) / 2))
        length = xp.where(searching, moved, length)
    return length, chance


def _dot(one: Array, other: Array, xp: Any) -> Array:
    if isinstance(one, np.ndarray):
        return xp.einsum("lfw,lfw->lf", one, other)
    return xp.linalg.vecdot(one, other)  # einsum of torch is a dozen calls


def _numbers(chosen: np.ndarray, like: Array) -> Array:
    """The places where `chosen` holds, where `like` is: a mask would make a GPU wait."""
    places = np.flatnonzero(chosen)
    return (
        places
        if isinstance(like, np.ndarray)
        else namespace(like).as_tensor(places, device=like.device)
    )


def _taken(of: Array, layers: Array, fits: Array) -> Array:
    """Some fits of some layers, of an array [layer, fit, ...]."""
    return of[layers][:, fits]


def _expit(logits: Array, xp: Any) -> Array:
    return 1.0 / (1.0 + xp.exp(-logits.clip(-700.0, 700.0)))
