"""Probabilities, thresholds, promises and distances against theory, brute force and simulation."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from kit.detect_worlds import material
from scipy.special import expit
from scipy.stats import norm
from sklearn.decomposition import PCA
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from anchorscope.detect.calibration import Platt, best_threshold, risk_threshold, threshold_band
from anchorscope.detect.side_probes import Distance, learn_distance
from anchorscope.errors import UserError
from anchorscope.stats.ranking import (
    auprc,
    brier,
    coverage_at,
    ece,
    prr,
    resampled_auroc,
)


def drawn(n: int, seed: int, *, apart: float = 2.0, wrong: float = 0.3):
    """Probabilities and classes; the score is normal, `apart` higher for wrong answers."""
    rng = np.random.default_rng(seed)
    z = (rng.random(n) < wrong).astype(int)
    return expit(rng.normal(apart * z, 1) - apart / 2), z


@pytest.mark.parametrize(("apart", "wrong"), [(1.0, 0.3), (2.0, 0.3)])
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


def cloud(n: int, seed: int, shift: float = 0.0) -> np.ndarray:
    """Correlated states [question, 1, 12]; the shift goes where they hardly spread."""
    rng = np.random.default_rng(seed)
    spread = np.array([5, 3, 2, *[1] * 8, 0.1])
    states = rng.standard_normal((n, 12)) * spread
    states[:, -1] += shift
    turned, _ = np.linalg.qr(np.random.default_rng(99).standard_normal((12, 12)))
    return (states @ turned)[:, None]


def learnt(n: int = 600) -> tuple[Distance, np.ndarray]:
    x = cloud(n, 0)
    return learn_distance(material(np.arange(n) % 2, {"clean": x}), layer=1), x[:, 0]


def test_it_is_the_mahalanobis_distance_of_scikit_learns_covariance():
    distance, x = learnt()
    scaled = (x.astype(np.float32) - distance.mean) / distance.scale
    precision = PCA(n_components=11).fit(scaled).get_precision()
    want = np.sqrt(np.einsum("qa,ab,qb->q", scaled, precision, scaled))
    assert distance.distances(x) == pytest.approx(want, rel=1e-4)


def test_new_answers_like_the_training_ones_are_spread_evenly_and_others_are_far():
    distance, _ = learnt()
    alike, moved = (distance.place(cloud(4000, 1, shift)[:, 0]) for shift in (0.0, 1.5))
    assert np.quantile(alike, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.06)
    assert np.mean(moved > 0.99) > 0.95
    # Along the direction of widest spread the same step is nothing unusual.
    assert ((alike >= 0) & (alike <= 1)).all()


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


def test_coverage_by_trying_every_threshold(scored):
    z, score, _ = scored
    for risk in (0.05, 0.1, 0.3, 0.49):
        best = 0.0
        for cut in np.unique(score):
            given = score <= cut
            if z[given].mean() <= risk:
                best = max(best, given.mean())
        assert coverage_at(z, score, risk) == pytest.approx(best)


def test_prr_is_that_of_rejecting_answers_one_by_one():
    """LM-Polygraph's definition in a loop, the mean over every order of answers of equal score."""
    z, score = np.array([0, 1, 0, 1, 1, 0]), np.array([0.1, 0.1, 0.4, 0.4, 0.4, 0.9])

    def area(order):
        kept = [1 - z[list(order[: k + 1])] for k in range(len(z))]
        return np.mean([np.mean(right) for right in kept])

    orders = [order for order in permutations(range(6)) if (np.diff(score[list(order)]) >= 0).all()]
    random = np.mean([area(order) for order in permutations(range(6))])
    found, best = np.mean([area(order) for order in orders]), area(np.argsort(z))
    assert len(orders) == 12
    assert prr(z, score) == pytest.approx((found - random) / (best - random))
    assert prr(z, z) == pytest.approx(1) and prr(z, np.zeros(6)) == pytest.approx(0)
    assert np.isnan(prr(np.ones(4), np.arange(4.0)))


def test_a_resample_is_a_weighted_auroc(scored):
    z, score, _ = scored
    rng = np.random.default_rng(1)
    wrong, right = np.flatnonzero(z == 1), np.flatnonzero(z == 0)
    counts = [
        rng.multinomial(len(members), np.full(len(members), 1 / len(members)), 5)
        for members in (wrong, right)
    ]
    found = resampled_auroc(score, wrong, right, *(members.T for members in counts))
    for n in range(5):
        weight = np.zeros(len(z))
        weight[wrong], weight[right] = counts[0][n], counts[1][n]
        assert found[n] == pytest.approx(roc_auc_score(z, score, sample_weight=weight))


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
