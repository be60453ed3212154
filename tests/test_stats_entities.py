"""Entities are drawn, not questions: against loops that do so, and in worlds of planted blocks."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from anchorscope.stats.drawing import design_effect
from anchorscope.stats.intervals import (
    Draws,
    bootstrap_mean,
    difference_of_means,
    group_means,
    rate,
)
from anchorscope.stats.ranking import auroc, auroc_draws, auroc_interval, resampled_auroc

ENDS = [0.025, 0.975]


@pytest.fixture
def blocks() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Values, class, score and entity of 40 entities with 1 to 6 questions each, mixed up."""
    rng = np.random.default_rng(7)
    entity = np.repeat([f"thing {i}" for i in range(40)], rng.integers(1, 7, 40))
    rng.shuffle(entity)
    number = np.unique(entity, return_inverse=True)[1]
    values = rng.standard_normal(40)[number] + 0.5 * rng.standard_normal(len(entity))
    z = (values + rng.standard_normal(len(entity)) > 0).astype(int)
    return values, z, np.round(values, 1), entity


def drawn_rows(entity: np.ndarray, resamples: int):
    """Rows of each resample: entities drawn one by one, all their questions taken."""
    rng = np.random.default_rng(99)
    names = np.unique(entity)
    own = {name: np.flatnonzero(entity == name) for name in names}
    for _ in range(resamples):
        yield np.concatenate([own[name] for name in rng.choice(names, len(names))])


def test_mean_share_of_draws_and_auroc_equal_a_loop_over_entities(blocks):
    values, z, score, entity = blocks
    loops = list(drawn_rows(entity, 4000))
    slow = np.quantile([values[rows].mean() for rows in loops], ENDS)
    fast = bootstrap_mean(values, seed=0, resamples=4000, entity=entity)
    assert fast.value == pytest.approx(values.mean(), abs=1e-14)
    assert fast.n == len(values)
    assert (fast.low, fast.high) == pytest.approx(tuple(slow), abs=0.02)

    sorted_by = [auroc(z[rows], score[rows]) for rows in loops]
    fast = auroc_interval(z, score, seed=0, resamples=4000, entity=entity)
    assert fast.value == roc_auc_score(z, score)
    assert (fast.low, fast.high) == pytest.approx(tuple(np.quantile(sorted_by, ENDS)), abs=0.01)


def test_a_difference_takes_both_groups_from_one_draw(blocks):
    values, z, _, entity = blocks
    values = values.copy()
    values[3] = np.nan
    apart = [
        np.nanmean(values[rows][z[rows] == 1]) - np.nanmean(values[rows][z[rows] == 0])
        for rows in drawn_rows(entity, 4000)
    ]
    fast = difference_of_means(values, z, Draws(resamples=4000), entity=entity)
    assert fast.value == pytest.approx(np.nanmean(values[z == 1]) - np.nanmean(values[z == 0]))
    assert (fast.low, fast.high) == pytest.approx(tuple(np.quantile(apart, ENDS)), abs=0.04)


def test_entities_of_one_question_each_change_no_byte():
    rng = np.random.default_rng(3)
    values, z = rng.standard_normal(90), rng.integers(2, size=90)
    alone = rng.permutation([f"q{i}" for i in range(90)])
    draws = Draws(seed=5, resamples=300)
    member = np.column_stack([z == 1, z == 0])
    twice = np.column_stack([values, values])
    assert bootstrap_mean(values, seed=1) == bootstrap_mean(values, seed=1, entity=alone)
    assert rate(z) == rate(z, entity=alone)
    assert auroc_interval(z, values, seed=1) == auroc_interval(z, values, seed=1, entity=alone)
    assert difference_of_means(values, z, draws) == difference_of_means(
        values, z, draws, entity=alone
    )
    for plain, given in zip(
        group_means(twice, member), group_means(twice, member, entity=alone), strict=True
    ):
        assert np.array_equal(plain, given)
    plain, given = (
        auroc_draws(z, [values], seed=2, resamples=300, entity=e) for e in (None, alone)
    )
    assert np.array_equal(plain, given)


def test_one_entity_has_a_mean_and_no_interval():
    one = np.array(["x"] * 5)
    got = bootstrap_mean(np.arange(5.0), seed=0, entity=one)
    assert got.value == 2.0
    assert np.isnan([got.low, got.high]).all()
    z, entity = np.array([1, 1, 0, 0, 0]), np.array(["x", "x", "y", "z", "z"])
    got = difference_of_means(np.arange(5.0), z, Draws(), entity=entity)
    assert got.value == 0.5 - 3.0
    assert np.isnan([got.low, got.high]).all()


def test_a_share_of_blocks_that_move_as_one_is_the_share_of_the_blocks():
    # 30 entities of 10 questions, all alike within each: 30 answers, written down ten times. The
    # estimated effect is 10 * 30/29, Wilson's interval that of 29 answers.
    entity = np.repeat(np.arange(30), 10)
    hits = entity < 12
    got = rate(hits, entity=entity)
    n, p, quantile = 29, 0.4, norm.ppf(0.975)
    middle = (p + quantile**2 / (2 * n)) / (1 + quantile**2 / n)
    reach = quantile / (1 + quantile**2 / n) * np.sqrt(p * (1 - p) / n + quantile**2 / (4 * n * n))
    assert (got.value, got.n) == (0.4, 300)
    assert (got.low, got.high) == pytest.approx((middle - reach, middle + reach), abs=1e-12)
    # No hits at all: the blocks are all that is known.
    assert rate(np.zeros(300), entity=entity).high == pytest.approx(rate(np.zeros(30)).high)
    assert design_effect(np.zeros(300), entity) == 10.0


def coverage(draw, *, worlds: int = 300) -> tuple[float, float]:
    """How often the true value lies inside, drawing questions and drawing entities."""
    inside = np.zeros((worlds, 2), dtype=bool)
    for world in range(worlds):
        estimates, truth = draw(np.random.default_rng(world))
        inside[world] = [e.low <= truth <= e.high for e in estimates]
    by_question, by_entity = inside.mean(axis=0)
    return float(by_question), float(by_entity)


def test_planted_blocks_fool_the_bootstrap_of_questions_only():
    entity = np.repeat(np.arange(60), 6)

    def means(rng):
        values = rng.standard_normal(60)[entity] + 0.5 * rng.standard_normal(360)
        draws = (bootstrap_mean(values, seed=0, resamples=400, entity=e) for e in (None, entity))
        return list(draws), 0.0

    def shares(rng):
        hits = rng.random(360) < rng.beta(0.1, 0.15, 60)[entity]
        return [rate(hits), rate(hits, entity=entity)], 0.4

    def aurocs(rng):
        z = rng.integers(2, size=60)[entity]
        score = z + rng.standard_normal(60)[entity] + 0.5 * rng.standard_normal(360)
        drawn = (auroc_interval(z, score, seed=0, resamples=400, entity=e) for e in (None, entity))
        return list(drawn), float(norm.cdf(1 / np.sqrt(2 * 1.25)))

    for draw in (means, shares, aurocs):
        by_question, by_entity = coverage(draw)
        assert by_question < 0.75
        assert 0.91 <= by_entity <= 0.98


def test_many_draws_take_little_memory():
    """64 MB were held for each thousand resamples of 64,000 answers, and eight times as many."""
    values = np.random.default_rng(0).normal(size=200_000)
    tracemalloc.start()
    bootstrap_mean(values, seed=0, resamples=400)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 250e6  # 80 MB of counts before, and 640 of the same as floats


def test_resampled_auroc_is_that_of_a_plain_count():
    rng = np.random.default_rng(3)
    score, wrong, right = rng.integers(0, 6, 35) / 2, np.arange(0, 20), np.arange(20, 35)  # ties
    of_wrong, of_right = rng.integers(0, 4, (20, 300)), rng.integers(0, 4, (15, 300))
    above, equal = (op(score[wrong][:, None], score[right]) for op in (np.greater, np.equal))
    plain = np.einsum("wr,wk,rk->k", above + 0.5 * equal, of_wrong, of_right)
    plain /= of_wrong.sum(axis=0) * of_right.sum(axis=0)
    assert np.array_equal(resampled_auroc(score, wrong, right, of_wrong, of_right), plain)
