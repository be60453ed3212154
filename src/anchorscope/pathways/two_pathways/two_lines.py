"""Two laws or one: a mixture of two regression lines against one curve with uneven noise.

"Q's belief falls to the prior, A's stays" makes two lines (slope 0 and slope 1) of the knocked-out
logit on the clean one, not two humps of shifts. A single curve whose noise grows with the margin
looks much alike, so that is what the mixture is held against, by parametric bootstrap.
"""

from __future__ import annotations

import numpy as np

from anchorscope.pathways.one_law import Fit
from anchorscope.stats.kept import normals

STEPS = 20  # of expectation and maximisation: enough to order the draws, not to settle each
_LEAST = 0.02  # least variance of a component, as a share of the whole: none may become a point


def two_lines_p(clean: np.ndarray, fit: Fit, *, seed: int, simulations: int = 59) -> float:
    """How often one curve gives a mixture of two lines this much more likely than itself."""
    drawn = fit.noise * normals(simulations, len(clean), seed=seed)
    residual = np.vstack([fit.residual[None], drawn])
    gain = _two(clean, fit.fitted + residual) - _one(residual, fit.noise)
    return float((1 + (gain[1:] >= gain[0]).sum()) / (1 + simulations))


def _one(residual: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Log-likelihood under one curve, [draw]; each draw has the size of its own noise."""
    scaled = residual / noise
    size = np.sqrt((scaled**2).mean(axis=1, keepdims=True))
    return -(0.5 * (scaled / size) ** 2 + np.log(size * noise)).sum(axis=1)


def _two(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """That of two lines through y [draw, question] on x [question], [draw].

    Begun from who lies nearer to zero than to the clean belief. scikit-learn has no mixture of
    regressions, and statsmodels none either.
    """
    return _fit(x, y, np.where(np.abs(y) < np.abs(y - x), 0.9, 0.1))


def _fit(x: np.ndarray, y: np.ndarray, first: np.ndarray) -> np.ndarray:
    least = _LEAST * y.var(axis=1)
    total = np.zeros(len(y))
    for _ in range(STEPS):
        parts = [_component(x, y, share, least) for share in (first, 1 - first)]
        total = np.logaddexp(*parts)
        first = np.exp(parts[0] - total)
    return total.sum(axis=1)


def _component(x: np.ndarray, y: np.ndarray, share: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Log of weight times density of one line, fitted with these shares, [draw, question]."""
    size = np.maximum(share.sum(axis=1), 1e-9)
    mean_x, mean_y = (share @ x) / size, (share * y).sum(axis=1) / size
    apart = x - mean_x[:, None]
    spread = np.maximum((share * apart**2).sum(axis=1), 1e-12)
    slope = (share * apart * (y - mean_y[:, None])).sum(axis=1) / spread
    left = y - mean_y[:, None] - slope[:, None] * apart
    variance = np.maximum((share * left**2).sum(axis=1) / size, least)[:, None]
    weight = np.clip(size / y.shape[1], 1e-9, 1)[:, None]
    return np.log(weight) - 0.5 * (left**2 / variance + np.log(variance))
