"""Numbers and intervals against counting, scikit-learn and the normal approximation."""

from __future__ import annotations

import numpy as np
import pytest
from kit.tiny import older
from scipy.special import expit
from scipy.stats import binomtest, bootstrap
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from anchorscope.errors import UserError
from anchorscope.stats.intervals import bootstrap_mean, rate
from anchorscope.stats.logistic import cross_fitted_logits
from anchorscope.stats.ranking import accuracy, auroc, auroc_interval


def counted(z, score) -> float:
    """AUROC by looking at every pair."""
    pairs = [
        1.0 if s > t else 0.5 if s == t else 0.0
        for s, y in zip(score, z, strict=True)
        if y == 1
        for t, x in zip(score, z, strict=True)
        if x == 0
    ]
    return sum(pairs) / len(pairs)


def test_auroc_counts_pairs_and_ties_half():
    rng = np.random.default_rng(0)
    z, score = rng.integers(2, size=80), rng.integers(6, size=80) / 3
    assert auroc(z, score) == pytest.approx(counted(z, score), abs=1e-12)
    assert auroc(z, np.zeros(80)) == 0.5
    assert auroc(np.array([0, 1]), np.array([0.1, 0.9])) == 1.0  # higher score = more likely wrong
    assert auroc(np.array([0, 1]), np.array([0.9, 0.1])) == 0.0


def test_auroc_of_one_class_or_nothing_is_nan():
    for z in ([1, 1, 1], [0], []):
        got = auroc_interval(np.array(z, dtype=int), np.arange(len(z)), seed=0)
        assert np.isnan(got[:3]).all()
        assert got.n == len(z)


def test_auroc_interval_equals_a_slow_bootstrap_with_scikit_learn():
    rng = np.random.default_rng(2)
    z = (np.arange(120) < 45).astype(int)
    score = np.round(0.8 * z + rng.standard_normal(120), 1)  # with ties
    slow = []
    for _ in range(800):
        rows = np.concatenate([rng.choice(45, 45), 45 + rng.choice(75, 75)])
        slow.append(roc_auc_score(z[rows], score[rows]))
    got = auroc_interval(z, score, seed=0, resamples=2000)
    assert got.value == roc_auc_score(z, score)
    assert got.n == 120
    assert (got.low, got.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=0.015)


def test_the_mean_of_nothing_is_nan_and_of_one_has_no_interval():
    nothing = bootstrap_mean(np.array([]), seed=0)
    assert np.isnan(nothing[:3]).all()
    assert nothing.n == 0
    one = bootstrap_mean(np.array([2.5]), seed=0)
    assert one.value == 2.5
    assert np.isnan(one[1:3]).all()
    assert one.n == 1


def test_intervals_repeat_with_the_seed_and_ignore_the_order():
    rng = np.random.default_rng(6)
    values, z = rng.standard_normal(100), rng.integers(2, size=100)
    order = rng.permutation(100)
    assert bootstrap_mean(values, seed=1) == bootstrap_mean(values[order], seed=1)
    assert bootstrap_mean(values, seed=1) != bootstrap_mean(values, seed=2)
    assert auroc_interval(z, values, seed=1) == auroc_interval(z[order], values[order], seed=1)


def test_accuracy_is_the_share_on_the_right_side_of_zero():
    assert accuracy(np.array([1, 1, 0, 0]), np.array([2.0, -1.0, -3.0, 0.0])) == 0.75
    assert np.isnan(accuracy(np.array([], dtype=int), np.array([])))


def test_a_nan_score_is_an_error_not_a_rank():
    with pytest.raises(UserError, match="1 of 3 scores are NaN"):
        auroc(np.array([0, 1, 1]), np.array([0.0, np.nan, 1.0]))


def test_rate_has_the_published_wilson_interval():
    # 10 of 100: 0.0552 to 0.1744 (Wilson score, no continuity correction).
    got = rate(np.arange(100) < 10)
    assert got == pytest.approx((0.1, 0.0552, 0.1744, 100), abs=1e-4)
    none = rate(np.zeros(300))
    assert none[:2] == (0.0, 0.0)
    assert none.high == pytest.approx(0.0126, abs=1e-4)
    assert np.isnan(rate(np.array([]))[:3]).all()


@pytest.mark.parametrize("n", [1, 2, 7, 30, 300])
def test_rate_is_scipys_wilson_interval_for_every_count(n):
    for hits in range(n + 1):
        ends = binomtest(hits, n).proportion_ci(method="wilson")
        assert rate(np.arange(n) < hits)[1:3] == pytest.approx(tuple(ends), abs=1e-15)


@pytest.mark.parametrize("n", [2, 50, 301])
def test_bootstrap_mean_draws_what_scipy_draws(n):
    values = np.sort(np.random.default_rng(n).exponential(size=n))
    how = {"random_state" if older("scipy", "1.15") else "rng": np.random.default_rng(3)}
    drawn = bootstrap((values,), np.mean, n_resamples=1000, method="percentile", **how)
    got = bootstrap_mean(values, seed=3, resamples=1000)
    assert (got.low, got.high) == pytest.approx(tuple(drawn.confidence_interval), rel=1e-14)


def test_cross_fitted_logits_are_those_of_scikit_learn():
    rng = np.random.default_rng(7)
    x, fold = rng.normal(size=(200, 3)) * [1, 50, 0.1] + 3, np.arange(200) % 5
    y = (rng.random(200) < expit(x[:, 0] - 3.4)).astype(int)
    plain = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, tol=1e-10))
    method = {"cv": PredefinedSplit(fold), "method": "decision_function"}
    expected = cross_val_predict(plain, x, y, **method)
    assert cross_fitted_logits(x, y, fold) == pytest.approx(expected, abs=1e-4)
    few = np.where(fold == 4, y, 0)  # without fold 4 there is one class
    assert np.array_equal(np.isnan(cross_fitted_logits(x, few, fold)), fold == 4)
