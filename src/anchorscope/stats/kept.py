"""A cache of random draws: layers, predictors and units need the same ones many times."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

_KEPT_BYTES = 2**26
_kept: dict[tuple, np.ndarray] = {}
_one_at_a_time = threading.Lock()


def kept(key: tuple, draw: Callable[[], np.ndarray], *, least: int = 0) -> np.ndarray:
    """The result of `draw`, made once for each key; the least recently used is dropped.

    A result that is shorter than `least` is made again.
    """
    with _one_at_a_time:
        drawn = _kept.pop(key, None)
        if drawn is None or len(drawn) < least:
            drawn = draw()
            drawn.setflags(write=False)
            total = sum(array.nbytes for array in _kept.values()) + drawn.nbytes
            while _kept and total > _KEPT_BYTES:
                total -= _kept.pop(next(iter(_kept))).nbytes
        _kept[key] = drawn
    return drawn


def may_keep(size: int) -> bool:
    """Whether so many bytes are few enough to be kept."""
    return size <= _KEPT_BYTES


def normals(*shape: int, seed: int) -> np.ndarray:
    """Normal noise of this shape, the same numbers as `default_rng(seed).standard_normal(shape)`.

    A generator gives its numbers one after the other, whatever shape they are to have. So those of
    the largest shape so far begin with those of every other, and each seed is drawn from once.
    """
    count = int(np.prod(shape))

    def draw() -> np.ndarray:
        return np.random.default_rng(seed).standard_normal(count)

    drawn = kept(("normals", seed), draw, least=count) if may_keep(8 * count) else draw()
    return drawn[:count].reshape(shape)
