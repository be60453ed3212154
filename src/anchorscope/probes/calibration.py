"""Platt scaling: the line from a probe's logit to one whose probability is right when held out.

A probe trained on fewer answers has logits of less spread for the same knowledge. Without this
line probabilities of probes "a" and "b", or of datasets of unlike size, could not be compared.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

# A probe at chance keeps its order and says about 1/2; a falling line would reverse the order.
LEAST_SLOPE = 0.05
_STEPS, _SMALL, _HALVINGS = 50, 1e-10, 20


def platt_lines(
    logits: np.ndarray, z: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Slope and intercept [fit] of log-odds = slope · logit + intercept, fitted to z [question].

    `logits` and `weights` are [fit, question]; weight 0 leaves a question out. The targets are
    Platt's, drawn a little towards each other, so that separated classes have a finite line.
    """
    weights = weights / weights.sum(axis=1, keepdims=True)
    used = weights > 0
    wrong, right = (np.sum(used & (z == value), axis=1, keepdims=True) for value in (1, 0))
    target = np.where(z == 1, (wrong + 1) / (wrong + 2), 1 / (right + 2))
    line = np.zeros((2, len(logits)))
    line = _newton(logits, target, weights, line, fixed=np.zeros(len(logits), dtype=bool))
    flat = line[0] < LEAST_SLOPE
    if flat.any():
        line[:, flat] = np.array([[LEAST_SLOPE], [0.0]])
        line = _newton(logits, target, weights, line, fixed=flat)
    return line[0], line[1]


def _newton(
    logits: np.ndarray,
    target: np.ndarray,
    weights: np.ndarray,
    line: np.ndarray,
    *,
    fixed: np.ndarray,
) -> np.ndarray:
    """The lines [2, fit] of least loss; `fixed` fits [fit] keep their slope.

    Two numbers a fit need no solver for matrices: `fit_many` takes sixteen times as long.
    """
    loss = _loss(logits, target, weights, line)
    for _ in range(_STEPS):
        chance = expit(line[0][:, None] * logits + line[1][:, None])
        residual, bend = weights * (chance - target), weights * chance * (1 - chance)
        up = np.stack([np.where(fixed, 0.0, (residual * logits).sum(1)), residual.sum(1)])
        a = np.where(fixed, 1.0, (bend * logits**2).sum(1))
        b, c = np.where(fixed, 0.0, (bend * logits).sum(1)), bend.sum(1)
        # Equal logits leave the slope open; the ridge then leaves it where it is.
        a = a + 1e-12
        step = -np.stack([c * up[0] - b * up[1], a * up[1] - b * up[0]]) / (a * c - b**2)
        line, before = line + step, line
        for _ in range(_HALVINGS):
            after = _loss(logits, target, weights, line)
            worse = after > loss + 1e-15
            if not worse.any():
                break
            line = np.where(worse, (line + before) / 2, line)
        loss = after
        if np.abs(line - before).max() < _SMALL:
            break
    return line


def _loss(
    logits: np.ndarray, target: np.ndarray, weights: np.ndarray, line: np.ndarray
) -> np.ndarray:
    """The mean loss [fit] of lines [2, fit]."""
    moved = line[0][:, None] * logits + line[1][:, None]
    # log(1 + exp(moved)); np.logaddexp takes five times as long.
    soft = np.maximum(moved, 0.0) + np.log1p(np.exp(-np.abs(moved)))
    return (weights * (soft - target * moved)).sum(axis=1)
