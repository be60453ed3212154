"""ΔP against exact arithmetic, and the signs it is defined with."""

from __future__ import annotations

from decimal import Decimal, getcontext

import numpy as np
import pytest

from anchorscope.errors import UserError
from anchorscope.pathways.effects import delta_p, flips, prediction

getcontext().prec = 60


def exact_points(clean: float, other: float) -> float:
    """100 · (P'(ŷ) − P(ŷ)) with sixty digits."""
    sign = 1 if clean > 0 else -1
    before, after = (1 / (1 + (-sign * Decimal(x)).exp()) for x in (clean, other))
    return float(100 * (after - before))


@pytest.mark.parametrize("clean", [-60.0, -3.0, -1e-9, 0.0, 0.5, 8.0, 45.0])
@pytest.mark.parametrize("other", [-50.0, -2.0, 0.0, 1e-9, 3.0, 46.0])
def test_points_are_exact_for_small_and_large_logits(clean, other):
    got = float(delta_p(np.array(clean), np.array(other)))
    assert got == pytest.approx(exact_points(clean, other), rel=1e-12, abs=0)


def test_signs_and_units():
    clean, other = np.array([2.0, -2.0, 2.0, -2.0]), np.array([1.0, -1.0, 3.0, -3.0])
    points = delta_p(clean, other)
    assert (points[:2] < 0).all()  # less sure of ŷ, whichever class ŷ is
    assert (points[2:] > 0).all()
    assert points[0] == pytest.approx(points[1], abs=1e-12)
    assert delta_p(clean, other, delta="logit").tolist() == [-1.0, -1.0, 1.0, 1.0]
    p = 1 / (1 + np.exp(-2.0))
    assert np.allclose(delta_p(clean, other, delta="relative"), points / p, rtol=1e-12)


def test_an_empty_intervention_changes_nothing():
    logit = np.random.default_rng(0).standard_normal((50, 4)) * 20
    for delta in ("points", "relative", "logit"):
        assert np.array_equal(delta_p(logit, logit, delta=delta), np.zeros((50, 4)))
    assert np.array_equal(flips(logit, logit), np.zeros((50, 4)))


def test_extremes_neither_overflow_nor_warn():
    with np.errstate(all="raise", under="ignore"):
        got = delta_p(np.array([1e4, -1e4, 1e4]), np.array([-1e4, 1e4, 1e4]))
    assert got.tolist() == [-100.0, -100.0, 0.0]


def test_predictions_and_flips():
    clean = np.array([1.0, -1.0, 0.0, 3.0, np.nan])
    other = np.array([-1.0, -2.0, 0.1, np.nan, 1.0])
    assert np.array_equal(prediction(clean), [1, 0, 0, 1, np.nan], equal_nan=True)
    assert np.array_equal(flips(clean, other), [1, 0, 1, np.nan, np.nan], equal_nan=True)
    assert np.isnan(delta_p(clean, other)[3:]).all()


def test_an_unknown_unit_is_named():
    with pytest.raises(UserError, match=r"Unknown delta 'percent'. Accepted: points, relative"):
        delta_p(np.zeros(1), np.zeros(1), delta="percent")  # pyright: ignore[reportArgumentType]
