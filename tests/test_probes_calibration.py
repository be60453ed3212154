"""Platt's lines against scikit-learn, and what they do to probes of unlike training sets."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from anchorscope.probes.cross_fit import cross_fit
from anchorscope.probes.folds import entity_folds
from anchorscope.probes.readings import Readings
from anchorscope.stats.logistic import LEAST_SLOPE, class_weights, platt_lines


def by_scikit_learn(logits, z, weights) -> tuple[float, float]:
    """The line for soft targets: every question counts as both classes, by its target."""
    used = weights > 0
    logits, z, weights = logits[used], z[used], weights[used]
    wrong, right = (z == 1).sum(), (z == 0).sum()
    target = np.where(z == 1, (wrong + 1) / (wrong + 2), 1 / (right + 2))
    solver = LogisticRegression(C=1e12, tol=1e-12, max_iter=10_000)
    solver.fit(
        np.r_[logits, logits][:, None],
        np.repeat([1, 0], len(z)),
        sample_weight=np.r_[weights * target, weights * (1 - target)],
    )
    return float(np.ravel(solver.coef_)[0]), float(np.ravel(solver.intercept_)[0])


@pytest.mark.parametrize("balance", ["weights", "none"])
def test_lines_are_those_of_scikit_learn(balance):
    rng = np.random.default_rng(0)
    z = (rng.random(300) < 0.2).astype(float)
    steep = np.array([0.4, 2.0, 8.0])[:, None]
    logits = steep * (1.5 * z + rng.standard_normal((3, 300))) + np.array([[0.0], [3.0], [-20.0]])
    learns = rng.random((3, 300)) < 0.7
    weights = class_weights(z, learns, balance)
    slope, intercept = platt_lines(logits, z, weights)
    for fit in range(3):
        expected = by_scikit_learn(logits[fit], z, weights[fit])
        assert (slope[fit], intercept[fit]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_parted_classes_have_a_finite_line():
    z = np.repeat([0.0, 1.0], 50)
    logits = np.r_[np.linspace(-2, -1, 50), np.linspace(1, 2, 50)][None]
    slope, intercept = platt_lines(logits, z, np.ones((1, 100)))
    assert (slope[0], intercept[0]) == pytest.approx(
        by_scikit_learn(logits[0], z, np.ones(100)), rel=1e-3, abs=1e-4
    )
    assert expit(slope * logits + intercept).max() < 0.999


def test_a_probe_at_chance_keeps_its_order_and_says_a_half():
    rng = np.random.default_rng(0)
    z = np.tile([0.0, 1.0], 500)
    turned = 3 * rng.standard_normal(1000) - z
    slope, intercept = platt_lines(turned[None] + 5, z, np.ones((1, 1000)))
    assert slope[0] == LEAST_SLOPE
    assert expit(slope * (turned + 5) + intercept).mean() == pytest.approx(0.5, abs=0.01)
    constant, height = platt_lines(np.full((1, 1000), 4.0), z, np.ones((1, 1000)))
    assert constant[0] * 4 + height[0] == pytest.approx(0, abs=1e-6)


def planted(n: int = 1500, width: int = 10) -> dict:
    """One layer of states that carry z in a few directions, as far as logistic noise lets them."""
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((n, width))
    signal = hidden[:, :4] @ np.array([1.0, -1.0, 0.5, 0.5])
    z = (signal + rng.logistic(size=n) > 0).astype(int)
    ids = [str(i) for i in range(n)]
    return {"states": {"clean": hidden[:, None]}, "ids": ids, "z": z, "fold": entity_folds(ids)}


def fitted(run: dict, **options) -> Readings:
    rest = {key: run[key] for key in ("ids", "z", "fold")}
    readings, probes = cross_fit(run["states"], **rest, **options)
    assert probes.calibrated == options.get("calibrate", True)
    return readings


def spreads(readings: Readings) -> np.ndarray:
    """The standard deviation of each probe's clean logits, [probe]."""
    return np.array([readings.of(probe)[:, 0].std() for probe in readings.probes])


def expected_error(z: np.ndarray, logits: np.ndarray, *, bins: int = 10) -> float:
    """Expected calibration error over bins of equal count."""
    order = np.array_split(np.argsort(logits), bins)
    gaps = [abs(z[rows].mean() - expit(logits[rows]).mean()) * len(rows) for rows in order]
    return sum(gaps) / len(z)


def test_probabilities_are_right_on_held_out_questions():
    run = planted()
    strong = {"C": 0.02}  # so strong a penalty that probes are far too shy
    plain, mended = fitted(run, **strong, calibrate=False), fitted(run, **strong)
    for probe in plain.probes:
        assert expected_error(run["z"], plain.of(probe)[:, 0]) > 0.1
        assert expected_error(run["z"], mended.of(probe)[:, 0]) < 0.04


def test_half_the_answers_and_any_penalty_give_the_spread_of_what_is_known():
    run = planted()
    # What a penalty on the sum of the losses would do to probes of two fifths of the questions.
    whole = spreads(fitted(run, C=0.2, calibrate=False))[0]
    half = spreads(fitted(run, C=0.1, calibrate=False))[1:]
    assert (half < 0.75 * whole).all()
    known = spreads(fitted(run, C=0.2))[0]
    for C in (0.1, 0.2, 1.0):
        assert np.allclose(spreads(fitted(run, C=C)), known, rtol=0.05)
