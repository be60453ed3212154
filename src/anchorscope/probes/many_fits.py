"""Many logistic regressions on the states of a layer, or of many layers, all fitted at once.

The probes of a layer (kinds × folds × fold seeds) learn from rows of the same matrix. Here a step
of all of them is two matrix products, of many layers two stacks of products. What a fit
leaves out has weight 0, and its standardisation is two small vectors, so that no row is copied. The
same lines run on numpy arrays and on torch tensors, on whatever device these are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anchorscope.config import Balance, default_of
from anchorscope.errors import UserError
from anchorscope.probes.curvature import Array, namespace, to_numpy
from anchorscope.probes.together import Fits, minimise

# Against the mean of the losses. Held-out AUROC less that of the best C, at C = 1, 3 and 10: on
# states of the bundled model (mean of 5 layers) -0.006, 0, -0.007 with 320 answers and -0.013,
# -0.002, 0 with 512. On made-up states with falling spectra (n 320 to 3,000, width 576 and 1,536,
# mean of 12 worlds) -0.001, -0.005, -0.016 where 10 directions carry the signal, and -0.051,
# -0.024, -0.008 where 200 do.
DEFAULT_C = default_of("C")
_DOUBT = 1e-6  # a variance so small beside the mean square is worked out from the rows themselves


Made = tuple[np.ndarray, np.ndarray]  # coefficients [fit, width], intercepts [fit]


class ProbeInputError(UserError, ValueError):
    """A UserError to the command line; the ValueError that scikit-learn's tools expect."""


class Request(NamedTuple):
    """Fits that are asked for on the states of a layer; what `fit_many` takes beside these."""

    y: np.ndarray  # [fit, question], 0 or 1
    weights: np.ndarray  # [fit, question], 0: left out
    C: np.ndarray  # [fit]


def fit_many(x: Array, y: Array, weights: Array, C: Array) -> tuple[Array, Array]:
    """Coefficients [fit, width] and intercepts [fit] of fits that share states x [question, width].

    A fit minimises the mean of its losses, weighted by `weights` [fit, question] (0: left out),
    plus |coefficients|² / 2C on features standardised by its own rows. `y` is 0 or 1, [question]
    or [fit, question]; `C` is [fit]. The logit x · coefficients + intercept is of states as they
    come. Everything is in double precision. With x [layer, question, width] the fits of all layers
    are made at once; `y` and `weights` may then differ by layer, and so do the results.
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
    spread = xp.where(spread > 0, spread, 1.0)
    features /= spread
    mean, scale = _mean_and_scale(features, weights > 0)
    y, C = y + 0.0 * share, C + 0.0 * share[..., 0]
    fits = Fits(y=y, share=share, C=C, mean=mean, scale=scale)
    raw = fits.to_raw(minimise(fits, columns))
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
    """The fits with coefficients in single precision, so that what is saved is what is used.

    Each intercept takes up what the rounding moves at the mean of the fit's own rows `learns`
    [fit, question]: far from zero that would be much more than the rounding itself.
    """
    rounded = coefficients.astype(np.float32)
    mean = learns @ x / learns.sum(axis=1, keepdims=True)
    return rounded, intercept + ((coefficients - rounded) * mean).sum(axis=1)


def _mean_and_scale(x: Array, learns: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each fit's rows, [layer, fit, width] each.

    A constant feature has an infinite one here, so that its weight is 0 exactly.
    """
    xp = namespace(x)
    part = learns * xp.ones_like(x[:1, :1, :1]) / learns.sum(-1)[..., None]
    mean, square = part @ x, part @ x**2
    variance = square - mean**2
    doubtful = variance <= _DOUBT * square
    for layer, fit in np.argwhere(to_numpy(doubtful.any(-1))):
        at = doubtful[layer, fit]
        rows = x[layer][learns[fit] if learns.ndim == 2 else learns[layer, fit]][:, at]
        mean[layer, fit, at] = rows.mean(0)
        spread = ((rows - mean[layer, fit, at]) ** 2).mean(0)
        # The mean of equal numbers is rounded, and leaves a spread of the rounding's size.
        variance[layer, fit, at] = xp.where((rows == rows[:1]).all(0), np.inf, spread)
    return mean, variance**0.5


def check_finite(X: np.ndarray) -> None:
    """Raise where X [question, width] holds NaN or infinity, naming the first place."""
    if not np.isfinite(X).all():
        rows, columns = np.nonzero(~np.isfinite(X))
        raise ProbeInputError(
            f"The states hold NaN or inf in {len(np.unique(rows))} of {len(X)} rows (first: row "
            f"{rows[0]}, column {columns[0]}). Leave these questions out or compute their "
            "states again."
        )
