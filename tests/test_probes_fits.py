"""Many fits at once, and their calibration, against scikit-learn one fit after another."""

from __future__ import annotations

import numpy as np
import pytest
from kit.cross_fitted import cross_fit
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from anchorscope.probes.cross_fit import FoldTask, fit_fold_tasks, fold_logits, task_logits
from anchorscope.probes.folds import PROBES, entity_folds, training_rows
from anchorscope.probes.linear_probe import LinearProbe
from anchorscope.probes.probe_set import Readings
from anchorscope.stats.logistic import LEAST_SLOPE, class_weights, fit_many, platt_lines, to_single


def states(n: int, width: int, *, share: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Features with a falling spectrum and of unlike size and middle; a `share` of ones."""
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((n, width)) / np.sqrt(np.arange(1, width + 1))
    x = hidden @ rng.standard_normal((width, width)) * np.geomspace(0.01, 100, width)
    signal = hidden[:, 0] + hidden[:, 3] + 0.5 * rng.standard_normal(n)
    z = (signal > np.quantile(signal, 1 - share)).astype(np.float64)
    return x + np.linspace(-50, 50, width), z


def cross_fits(n: int) -> np.ndarray:
    """Who learns from what, [fit, question]: three kinds of probe, five folds."""
    fold = entity_folds([str(i) for i in range(n)])
    return np.array([training_rows(fold, held_out=f, probe=p) for p in PROBES for f in range(5)])


def logits_of(x, z, learns, weights, C):
    coefficients, intercept = fit_many(x, z, weights, np.full(len(learns), C))
    return x @ coefficients.T + intercept  # [question, fit]


def by_scikit_learn(x, z, rows, weights, C) -> np.ndarray:
    scaler = StandardScaler().fit(x[rows])
    solver = LogisticRegression(C=C / rows.sum(), tol=1e-9, max_iter=10_000)
    solver.fit(scaler.transform(x[rows]), z[rows], sample_weight=weights[rows])
    return solver.decision_function(scaler.transform(x))


@pytest.mark.parametrize(
    ("n", "width", "share"), [(400, 60, 0.5), (150, 300, 0.5), (400, 60, 0.04), (120, 200, 0.1)]
)
@pytest.mark.parametrize("balance", ["weights", "none"])
@pytest.mark.parametrize("C", [0.1, 10.0])
def test_every_fit_is_that_of_scikit_learn(n, width, share, balance, C):
    x, z = states(n, width, share=share)
    learns = cross_fits(n)
    weights = class_weights(z, learns, balance)
    logits = logits_of(x, z, learns, weights, C)
    for fit in range(0, len(learns), 4):
        expected = by_scikit_learn(x, z, learns[fit], weights[fit], C)
        assert np.abs(logits[:, fit] - expected).max() < 1e-4


def test_fits_with_their_own_labels_and_strengths_share_a_batch():
    x, z = states(200, 30)
    labels, C = np.array([z, 1 - z, z]), np.array([1.0, 1.0, 5.0])
    coefficients, intercept = fit_many(x, labels, np.ones((3, 200)), C)
    assert np.allclose(coefficients[0], -coefficients[1], rtol=1e-3, atol=1e-9)
    for fit, strength in ((0, 1.0), (2, 5.0)):
        everyone = np.ones(200, dtype=bool)
        expected = by_scikit_learn(x, z, everyone, np.ones(200), strength)
        assert np.abs(x @ coefficients[fit] + intercept[fit] - expected).max() < 1e-4


def test_a_feature_constant_in_some_fits_has_no_weight_there():
    x, z = states(200, 10)
    learns = cross_fits(200)
    x = np.hstack([x, np.full((200, 2), 1e5 / 3)])
    x[~learns[0], 10] += np.random.default_rng(0).standard_normal((~learns[0]).sum())
    weights = class_weights(z, learns, "weights")
    coefficients, _ = fit_many(x, z, weights, np.ones(len(learns)))
    assert (coefficients[:, 11] == 0).all()
    varies = (learns & ~learns[0]).any(axis=1)
    assert 0 < varies.sum() < len(learns)
    assert np.array_equal(coefficients[:, 10] != 0, varies)
    alone = fit_many(x[:, :10], z, weights[:1], np.ones(1))[0]
    assert np.allclose(coefficients[0, :10], alone[0], rtol=1e-4, atol=1e-6)


def test_a_row_of_weight_zero_may_hold_anything():
    x, z = states(200, 15)
    weights = np.ones((2, 200))
    weights[:, :40], weights[0, 40:50] = 0, 0
    before = fit_many(x, z, weights, np.ones(2))
    x[:40] = np.nan
    after = fit_many(x, z, weights, np.ones(2))
    kept = fit_many(x[40:], z[40:], weights[:, 40:], np.ones(2))
    for one, other, third in zip(before, after, kept, strict=True):
        assert np.array_equal(one, other)
        assert np.allclose(one, third, rtol=1e-9)


def test_classes_that_a_line_parts_end_at_a_finite_slope():
    x, z = states(100, 5)
    x[:, 0] = 10 * z + np.linspace(0, 1, 100)
    weights = np.ones((1, 100))
    logits = logits_of(x, z, weights > 0, weights, 100.0)[:, 0]
    expected = by_scikit_learn(x, z, weights[0] > 0, weights[0], 100.0)
    assert np.abs(logits - expected).max() < 1e-3
    assert ((logits > 0) == z).all()


@pytest.mark.filterwarnings("error")
def test_features_with_heavy_tails_and_a_weak_penalty_converge():
    rng = np.random.default_rng(0)
    x = rng.standard_cauchy((400, 60))
    z = (np.arctan(x[:, 0]) + rng.standard_normal(400) > 0).astype(np.float64)
    learns = cross_fits(400)[:5]
    weights = class_weights(z, learns, "none")
    logits = logits_of(x, z, learns, weights, 300.0)
    for fit, rows in enumerate(learns):
        expected = by_scikit_learn(x, z, rows, weights[fit], 300.0)
        assert np.abs(logits[:, fit] - expected)[rows].max() < 1e-3


def test_a_probe_is_the_batch_of_one():
    x, z = states(300, 50)
    learns = cross_fits(300)
    fits = fit_many(x, z, class_weights(z, learns, "weights"), np.full(len(learns), 2.0))
    weights, intercept = to_single(*fits, x, learns)
    for fit in (0, 7, 14):
        probe = LinearProbe(C=2.0).fit(x[learns[fit]], z[learns[fit]])
        logits = x @ weights[fit].astype(np.float64) + intercept[fit]
        assert np.abs(probe.decision_function(x) - logits).max() < 2e-5


def world(n: int = 200, width: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States, labels that two features carry, and folds 0, 1, 2, 4 of unlike size."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, width)) * np.geomspace(0.1, 10, width)
    label = (x[:, 0] / 0.1 + x[:, -1] / 10 + rng.standard_normal(n) > 0.5).astype(float)
    return x, label, rng.choice([0, 1, 2, 4], p=[0.1, 0.2, 0.3, 0.4], size=n)


@pytest.mark.parametrize("balance", ["weights", "none"])
def test_each_question_is_read_by_the_probe_of_the_other_folds(balance):
    x, label, fold = world()
    tasks = [FoldTask(np.arange(len(x)), label, fold, 2.0)]
    probes = fit_fold_tasks(x, tasks, balance=balance)
    for number in np.unique(fold):
        rows = fold == number
        alone = LinearProbe(C=2.0, balance=balance).fit(x[~rows], label[~rows])
        for states in (x, x + 0.3):
            expected = alone.decision_function(states[rows])
            assert np.allclose(task_logits(probes, tasks, states)[0][rows], expected, atol=2e-5)


def test_a_fold_whose_others_hold_too_few_of_a_class_has_no_probe():
    x, label, fold = world()
    label[fold != 4] = 0
    label[np.flatnonzero(fold == 0)[:3]] = 1
    (few,) = fold_logits(x, label[None], fold, least=4)  # without fold 4 three are left
    assert np.array_equal(np.isnan(few), fold == 4)
    assert not np.isnan(fold_logits(x, label[None], fold, least=3)).any()
    assert np.isnan(fold_logits(x, np.zeros((1, len(x))), fold)).all()


def test_tasks_fitted_together_are_the_tasks_fitted_alone():
    rng = np.random.default_rng(3)
    x, fold = rng.normal(size=(150, 30)), rng.integers(0, 5, size=150)
    labels = (x[:, :2].T + rng.normal(size=(2, 150)) > 0).astype(float)
    labels[1, ::3] = np.nan  # none of the second task's questions
    together = fold_logits(x, labels, fold, C=0.5)
    for task, logits in zip(labels, together, strict=True):
        own = ~np.isnan(task)
        (alone,) = fold_logits(x[own], task[None, own], fold[own], C=0.5)
        assert logits[own] == pytest.approx(alone, abs=1e-4)
        assert np.isnan(logits[~own]).all()


def line_by_scikit_learn(logits, z, weights) -> tuple[float, float]:
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
        expected = line_by_scikit_learn(logits[fit], z, weights[fit])
        assert (slope[fit], intercept[fit]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_parted_classes_have_a_finite_line():
    z = np.repeat([0.0, 1.0], 50)
    logits = np.r_[np.linspace(-2, -1, 50), np.linspace(1, 2, 50)][None]
    slope, intercept = platt_lines(logits, z, np.ones((1, 100)))
    assert (slope[0], intercept[0]) == pytest.approx(
        line_by_scikit_learn(logits[0], z, np.ones(100)), rel=1e-3, abs=1e-4
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


def planted_run(n: int = 1500, width: int = 10) -> dict:
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
    run = planted_run()
    strong = {"C": 0.02}  # so strong a penalty that probes are far too shy
    plain, mended = fitted(run, **strong, calibrate=False), fitted(run, **strong)
    for probe in plain.probes:
        assert expected_error(run["z"], plain.of(probe)[:, 0]) > 0.1
        assert expected_error(run["z"], mended.of(probe)[:, 0]) < 0.04


def test_half_the_answers_and_any_penalty_give_the_spread_of_what_is_known():
    run = planted_run()
    # What a penalty on the sum of the losses would do to probes of two fifths of the questions.
    whole = spreads(fitted(run, C=0.2, calibrate=False))[0]
    half = spreads(fitted(run, C=0.1, calibrate=False))[1:]
    assert (half < 0.75 * whole).all()
    known = spreads(fitted(run, C=0.2))[0]
    for C in (0.1, 0.2, 1.0):
        assert np.allclose(spreads(fitted(run, C=C)), known, rtol=0.05)
