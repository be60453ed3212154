"""Means of many groups at once, with bootstrap intervals over questions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from anchorscope.probes.metrics import LEVEL

_BLOCK = 2_000_000  # numbers drawn at a time, so that memory stays flat


class Means(NamedTuple):
    """One mean per column, [column] each; NaN for an empty group, no interval for one sample."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: np.ndarray


def group_means(
    values: np.ndarray, member: np.ndarray, *, seed: int = 0, resamples: int = 1000
) -> Means:
    """The mean of each column over its members, from values and members [question, column].

    The same questions are drawn for every column, so a whole table costs two matrix products.
    """
    member = member & ~np.isnan(values)
    weights, values = member.astype(np.float64), np.where(member, values, 0.0)
    n = member.sum(axis=0)
    drawn = [
        _divide(times @ values, times @ weights) for times in _draws(len(values), seed, resamples)
    ]
    low, high = _ends(np.concatenate(drawn), n >= 2)
    return Means(_divide(values.sum(axis=0), n), low, high, n)


def _draws(n: int, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """How often each of n questions is drawn, [resample, question], a block at a time."""
    rng, size = np.random.default_rng(seed), max(1, _BLOCK // max(n, 1))
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        if n == 0:
            yield np.zeros((count, 0))
        else:
            yield rng.multinomial(n, np.full(n, 1 / n), size=count).astype(np.float64)


def _divide(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)


def _ends(drawn: np.ndarray, enough: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of each column's interval; draws that lost the group do not count."""
    ends = np.full((2, drawn.shape[1]), np.nan)
    # A column with two members at least keeps one in nearly every draw, so none is all NaN.
    kept = enough & np.isfinite(drawn).any(axis=0)
    if kept.any():
        ends[:, kept] = np.nanquantile(drawn[:, kept], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return ends[0], ends[1]
