"""Thresholds against brute force and by simulation of what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from anchorscope.detect.threshold import best_threshold, risk_threshold, threshold_band
from anchorscope.errors import UserError


def drawn(n: int, seed: int, *, apart: float = 2.0, wrong: float = 0.3):
    """Probabilities and classes; the score is normal, `apart` higher for wrong answers."""
    rng = np.random.default_rng(seed)
    z = (rng.random(n) < wrong).astype(int)
    return expit(rng.normal(apart * z, 1) - apart / 2), z


@pytest.mark.parametrize(("apart", "wrong"), [(1.0, 0.3), (2.0, 0.3), (2.0, 0.6)])
def test_the_promised_risk_is_kept_as_often_as_promised_and_on_average(apart, wrong):
    cuts, _ = drawn(500, 10**6, apart=apart, wrong=wrong)
    risks, refused = [], 0
    for seed in range(300):
        probability, z = drawn(200, seed, apart=apart, wrong=wrong)
        try:
            cut, _ = risk_threshold(probability, z, np.arange(200), risk=0.15, cuts=cuts)
        except UserError:
            refused += 1  # nothing is accepted, nothing accepted is wrong
            continue
        score = np.log(cut / (1 - cut)) + apart / 2
        accepted = wrong * norm.cdf(score - apart), (1 - wrong) * norm.cdf(score)
        risks.append(accepted[0] / sum(accepted))
    assert np.sum(np.array(risks) > 0.15) / 300 < 0.14  # 0.10, and three standard errors
    assert np.sum(risks) / 300 < 0.15
    if apart == 2.0:
        assert refused < 150 and np.mean(risks) > 0.05  # it is not kept by accepting nothing


def test_the_promise_is_kept_where_answers_about_one_entity_go_together():
    """Five answers an entity, right or wrong together: counting answers breaks it far too often."""
    cuts, _ = drawn(500, 10**6)
    entity, broken, accepted = np.repeat(np.arange(80), 5), 0, 0
    for seed in range(300):
        score, z = drawn(80, seed)
        probability = np.repeat(score, 5)
        try:
            cut, _ = risk_threshold(probability, np.repeat(z, 5), entity, risk=0.15, cuts=cuts)
        except UserError:
            continue
        accepted += 1
        place = np.log(cut / (1 - cut)) + 1
        wrong, right = 0.3 * norm.cdf(place - 2), 0.7 * norm.cdf(place)
        broken += wrong / (wrong + right) > 0.15
    assert accepted > 30 and broken / 300 < 0.14  # 0.10, and three standard errors


def test_the_promise_counts_what_it_was_made_on():
    probability, z = drawn(400, 0)
    cut, promise = risk_threshold(probability, z, np.arange(400), risk=0.1, cuts=drawn(400, 1)[0])
    accepted = probability <= cut
    assert (promise.entities, promise.accepted) == (400, accepted.sum())
    assert promise.wrong == z[accepted].sum() < 0.1 * promise.accepted
    assert "at most 10% of the answers let through" in str(promise)
    assert "90% confidence" in str(promise) and "exchangeable" in str(promise)
    with pytest.raises(UserError, match=r"A risk of 0.01 cannot be promised: .* 400 calibration"):
        risk_threshold(probability, z, np.arange(400), risk=0.01, cuts=probability)


def test_the_band_is_the_interval_of_the_best_threshold():
    probability, z = drawn(300, 0)
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, 300, 300) for _ in range(400)]
    want = np.quantile([best_threshold(probability[r], z[r]) for r in rows], [0.025, 0.975])
    assert threshold_band(probability, z) == pytest.approx(want, abs=0.06)


def test_few_answers_and_weak_scores_widen_the_band():
    def says_nothing(n: int, apart: float) -> float:
        shares = []
        for seed in range(10):
            probability, z = drawn(n, seed, apart=apart, wrong=0.5)
            low, high = threshold_band(probability, z, seed=seed)
            assert low <= best_threshold(probability, z) <= high
            shares.append(np.mean((probability > low) & (probability <= high)))
        return float(np.mean(shares))

    assert says_nothing(60, 2.0) > 2 * says_nothing(2000, 2.0)
    assert says_nothing(60, 2.0) < says_nothing(60, 0.5)
    assert says_nothing(200, 0.0) > 0.7
    assert says_nothing(2000, 2.0) < 0.2
