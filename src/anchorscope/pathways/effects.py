"""What an intervention does to a probe's verdict: ΔP and flips."""

from __future__ import annotations

from typing import get_args

import numpy as np
from scipy.special import expit

from anchorscope.config import Delta
from anchorscope.errors import unknown


def prediction(clean_logit: np.ndarray) -> np.ndarray:
    """ŷ of each clean logit: 1.0 (wrong) above zero, else 0.0 (right); NaN stays NaN."""
    clean = np.asarray(clean_logit, dtype=np.float64)
    return np.where(np.isnan(clean), np.nan, (clean > 0).astype(np.float64))


def flips(clean_logit: np.ndarray, other_logit: np.ndarray) -> np.ndarray:
    """1.0 where the intervention changes the prediction, 0.0 where not, NaN where unknown."""
    return np.abs(prediction(clean_logit) - prediction(other_logit))


def delta_p(
    clean_logit: np.ndarray, other_logit: np.ndarray, *, delta: Delta = "points"
) -> np.ndarray:
    """The change of the originally predicted class ŷ, in the shape of the logits.

    "points": 100 · (P'(ŷ) − P(ŷ)); "relative": the same divided by P(ŷ); "logit": the change of
    the logit, signed towards ŷ. Negative: the intervention took support away.
    """
    if delta not in get_args(Delta):
        raise unknown("delta", delta, get_args(Delta))
    towards = np.where(prediction(clean_logit) == 1, 1.0, -1.0)
    before = towards * np.asarray(clean_logit, dtype=np.float64)
    after = towards * np.asarray(other_logit, dtype=np.float64)
    if delta == "logit":
        return after - before
    points = 100 * _expit_difference(after, before)
    return points if delta == "points" else points / expit(before)


def _expit_difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """σ(x) − σ(y), exact to rounding also where both are close to 0 or to 1.

    Subtracting would lose every digit there: σ(40) and σ(50) are the same number.
    """
    high, low = np.maximum(x, y), np.minimum(x, y)
    return np.sign(x - y) * expit(high) * expit(-low) * -np.expm1(low - high)
