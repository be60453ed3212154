"""Arrays as text: base64 of little-endian numbers, half precision where a figure needs no more."""

from __future__ import annotations

import base64
from collections.abc import Iterable

import numpy as np

_LARGEST = 65504.0  # of half precision
_SMALLEST = float(np.finfo(np.float16).smallest_subnormal)


def halves(values: np.ndarray) -> str:
    """Numbers of any shape in half precision, row after row; NaN stays NaN.

    A number above 0 stays above 0: the sign of a logit is the prediction.
    """
    exact = np.asarray(values, dtype=np.float64)
    rounded = np.clip(exact, -_LARGEST, _LARGEST).astype("<f2")
    lost = (exact > 0) & (rounded == 0)
    return _text(np.where(lost, np.float16(_SMALLEST), rounded).astype("<f2"))


def floats(values: Iterable[float]) -> str:
    """Numbers in single precision."""
    return _text(np.fromiter(values, dtype="<f4"))


def integers(values: Iterable[int]) -> str:
    """Numbers of 32 bits."""
    return _text(np.fromiter(values, dtype="<i4"))


def codes(values: np.ndarray | list[int]) -> str:
    """Numbers from 0 to 255."""
    return _text(np.asarray(values, dtype=np.uint8))


def _text(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
