"""The numbers of the table, against scikit-learn and against counting."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from anchorscope.detect.method import Platt
from anchorscope.stats.ranking import (
    auprc,
    auroc_draws,
    brier,
    coverage_at,
    ece,
    paired_difference,
    reliability,
    resampled_auroc,
    risk_coverage,
)


@pytest.fixture
def scored():
    rng = np.random.default_rng(0)
    z = rng.integers(0, 2, 200)
    return z, np.round(rng.normal(z, 1.5), 1), np.clip(rng.normal(0.3 + 0.4 * z, 0.2), 0, 1)


def test_auprc_and_brier_are_scikit_learns(scored):
    z, score, p = scored
    assert auprc(z, score) == average_precision_score(z, score)
    assert brier(z, p) == pytest.approx(brier_score_loss(z, p))
    assert np.isnan(auprc(np.ones(4), np.arange(4.0)))
    assert np.isnan(brier(np.array([]), np.array([])))
    assert np.isnan(ece(np.array([]), np.array([])))


def test_ece_by_a_loop(scored):
    z, _, p = scored
    total = 0.0
    for low in np.arange(10) / 10:
        here = (p >= low) & ((p < low + 0.1) if low < 0.89 else (p <= 1))
        if here.any():
            total += here.sum() * abs(z[here].mean() - p[here].mean())
    assert ece(z, p) == pytest.approx(total / len(z))


def test_reliability_is_scikit_learns_curve_but_for_the_borders():
    rng = np.random.default_rng(5)
    z, p = rng.integers(0, 2, 300), rng.random(300)  # none on a border
    said, true, count = reliability(z, p)
    wanted_true, wanted_said = calibration_curve(z, p, n_bins=10)
    assert np.array_equal(said, wanted_said) and np.array_equal(true, wanted_true)
    assert count.tolist() == np.histogram(p, 10, (0, 1))[0].tolist()
    said, _, count = reliability(np.array([0, 1]), np.array([0.5, 0.55]))
    assert said.tolist() == [0.525] and count.tolist() == [2]  # a border belongs to the bin above


def test_coverage_by_trying_every_threshold(scored):
    z, score, _ = scored
    for risk in (0.05, 0.1, 0.3, 0.49):
        best = 0.0
        for cut in np.unique(score):
            given = score <= cut
            if z[given].mean() <= risk:
                best = max(best, given.mean())
        assert coverage_at(z, score, risk) == pytest.approx(best)


def test_equal_scores_are_given_together():
    curve = risk_coverage(np.array([0, 1, 0, 1]), np.array([1.0, 1.0, 1.0, 2.0]))
    assert curve.x.tolist() == [0.75, 1.0]
    assert curve.y.tolist() == pytest.approx([1 / 3, 0.5])
    assert coverage_at(np.array([0, 1]), np.zeros(2), 0.05) == 0.0


def test_a_resample_is_a_weighted_auroc(scored):
    z, score, _ = scored
    rng = np.random.default_rng(1)
    wrong, right = np.flatnonzero(z == 1), np.flatnonzero(z == 0)
    counts = [rng.multinomial(len(of), np.full(len(of), 1 / len(of)), 5) for of in (wrong, right)]
    found = resampled_auroc(score, wrong, right, *(of.T for of in counts))
    for n in range(5):
        weight = np.zeros(len(z))
        weight[wrong], weight[right] = counts[0][n], counts[1][n]
        assert found[n] == pytest.approx(roc_auc_score(z, score, sample_weight=weight))


def test_the_same_resamples_serve_every_score(scored):
    z, score, p = scored
    draws = auroc_draws(z, [score, 3 * score + 1, p], seed=0, resamples=300)
    assert draws.shape == (3, 300)
    assert np.array_equal(draws[0], draws[1])
    same = paired_difference(0.7, 0.7, draws[0] - draws[1])
    assert same.value == same.low == same.high == 0
    assert same.p == 1
    assert np.isnan(auroc_draws(np.ones(5), [np.arange(5.0)], seed=0, resamples=10)).all()


def test_p_is_small_for_a_real_difference_and_holds_its_level_without_one():
    rng = np.random.default_rng(0)
    rejected = 0
    for seed in range(100):
        z = np.arange(120) % 2
        a, b = rng.normal(z, 1), rng.normal(z, 1)
        draws = auroc_draws(z, [a, b], seed=seed, resamples=200)
        value = roc_auc_score(z, a) - roc_auc_score(z, b)
        rejected += paired_difference(value, 0, draws[0] - draws[1]).p < 0.05
    assert rejected <= 12  # of 100; above it with a chance of 1 in 1,000 at a level of 5 %
    draws = auroc_draws(z, [3 * z + a, b], seed=0, resamples=1000)
    assert paired_difference(0.2, 0, draws[0] - draws[1]).p == pytest.approx(2 / 1001)


def test_platt_finds_the_planted_line_and_never_falls():
    rng = np.random.default_rng(0)
    score = rng.normal(0, 1, 40_000)
    z = (rng.random(len(score)) < 1 / (1 + np.exp(-(2 * score - 1)))).astype(int)
    line = Platt.fit(score, z)
    assert line.slope == pytest.approx(2, abs=0.08)
    assert line.intercept == pytest.approx(-1, abs=0.08)
    fallen = Platt.fit(-score, z)
    assert fallen.probability(score)[:3] == pytest.approx([z.mean()] * 3, abs=1e-5)
    assert np.abs(fallen.evidence(score)).max() < 1e-5
    assert np.array_equal(np.argsort(fallen.evidence(score)), np.argsort(score))
    assert Platt.fit(np.ones(9), z[:9]).slope == 0
    assert np.isnan(line.probability(np.array([np.nan])))[0]
