"""Agreement, class collapse, correlation, shape, what a group adds, how far states moved."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.covariance import LedoitWolf
from sklearn.metrics import cohen_kappa_score
from sklearn.mixture import GaussianMixture

from anchorscope.config import Config
from anchorscope.pathways.strict_tables import (
    adds_columns,
    agreement,
    class_collapse,
    refit_columns,
)
from anchorscope.probes.probe_set import Readings
from anchorscope.records import Estimate
from anchorscope.stats.humps import shape, two_humps
from anchorscope.stats.intervals import Draws, weighted
from anchorscope.stats.mahalanobis import Mahalanobis
from anchorscope.stats.ranking import correlation_with_draws, kappa_interval


@pytest.mark.parametrize("seed", range(4))
def test_kappa_of_what_both_know_is_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 60))
    one = rng.integers(0, 2, n)
    other = np.where(rng.random(n) < 0.7, one, 1 - one)
    one[:2], other[:2] = (0, 1), (1, 0)  # both groups on both sides
    expected = pytest.approx(cohen_kappa_score(one, other), abs=1e-12)
    assert kappa_interval(one, other, Draws()).value == expected
    unknown = np.r_[one, np.nan, 1.0], np.r_[other, 1.0, np.nan]
    assert kappa_interval(*unknown, Draws()).value == expected


@pytest.mark.parametrize("one", [[1, 1, 1, 1], [0, 0, 0, 0], []])
def test_kappa_of_an_empty_group_is_not_measured(one):
    other = [1, 0, 1, 0][: len(one)]
    found = kappa_interval(np.array(one), np.array(other), Draws())
    assert np.isnan(found[:3]).all() and found.n == len(one)


def test_interval_is_that_of_drawing_questions():
    rng = np.random.default_rng(1)
    one = rng.integers(0, 2, 150)
    other = np.where(rng.random(150) < 0.8, one, 1 - one)
    found = kappa_interval(one, other, Draws(seed=3, resamples=4000))
    rows = rng.integers(150, size=(4000, 150))
    drawn = [cohen_kappa_score(one[r], other[r]) for r in rows[:500]]
    assert found[1:3] == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.03)


def test_agreement_asks_each_probe_about_its_own_flip():
    clean = np.array([[-1.0], [-1.0], [1.0], [1.0], [-2.0], [2.0]])
    same = clean.copy()
    a, b = clean.copy(), clean.copy()
    a[[0, 2, 4]] *= -1  # a flips 0, 2, 4; b flips 0, 2, 5
    b[[0, 2, 5]] *= -1
    readings = Readings(
        ids=tuple("abcdef"),
        z=np.array([0, 1] * 3),
        fold=np.arange(6) % 3,
        probes=("paper", "a", "b"),
        logits={"clean": np.stack([clean] * 3), "knockout": np.stack([same, a, b])},
    )
    found = agreement(readings, 1, Draws(seed=0, resamples=100))
    assert found["kappa"].value == pytest.approx(
        cohen_kappa_score([1, 0, 1, 0, 1, 0], [1, 0, 1, 0, 0, 1])
    )
    assert np.isnan(found["kappa_next"].value)  # there is no next layer


def test_weighted_mean_by_numbers_and_without_unknowns():
    one, other = Estimate(0.2, 0.1, 0.3, 30), Estimate(0.6, 0.5, 0.7, 10)
    nothing = Estimate(np.nan, np.nan, np.nan, 5)
    assert weighted([one, other, nothing]).value == pytest.approx(0.3)
    assert np.isnan(weighted([nothing]).value)


def test_a_shift_of_everybody_is_collapse_and_a_flip_of_half_is_not():
    rng = np.random.default_rng(0)
    clean = rng.choice([-2.0, 2.0], 400) + 0.3 * rng.standard_normal(400)
    pushed = class_collapse(clean, clean - 6)
    assert pushed["collapse"] and pushed["group_explained"] == pytest.approx(1)
    assert pushed["group_auroc"] == 1
    assert (pushed["flip_wrong"], pushed["flip_right"]) == (1.0, 0.0)
    half = class_collapse(clean, np.where(np.arange(400) % 2, clean, -clean))
    assert not half["collapse"] and half["group_explained"] < 0.05
    none = class_collapse(clean, clean)
    assert np.isnan(none["group_explained"]) and not none["collapse"]


def test_the_draws_of_a_correlation_spread_as_fishers_interval():
    rng = np.random.default_rng(0)
    own, x, y = rng.normal(size=(3, 300))
    seen = (own + 0.5 * x, own + 0.5 * y)
    value, drawn = correlation_with_draws(*seen, Draws(resamples=500))
    assert value == pytest.approx(np.corrcoef(*seen)[0, 1])
    ends = np.tanh(np.arctanh(value) + np.array([-1, 1]) * 1.96 / np.sqrt(297))
    assert np.quantile(drawn, [0.025, 0.975]) == pytest.approx(ends, abs=0.03)


def test_residuals_without_spread_have_no_correlation():
    value, drawn = correlation_with_draws(np.zeros(30), np.arange(30.0), Draws())
    assert np.isnan(value) and np.isnan(drawn).all()


def test_one_hump_and_two():
    rng = np.random.default_rng(1)
    one = shape(rng.normal(size=400))
    assert one.p > 0.5 and one.bic < 0
    two = shape(np.concatenate([rng.normal(size=200), rng.normal(6, 1, 200)]))
    assert two.p <= 0.001 + 1e-9 and two.bic > 50
    assert np.isnan(shape(np.arange(19.0)).p) and np.isnan(shape(np.ones(50)).p)


def test_skew_makes_two_components_but_not_two_humps():
    """Why BIC alone may not say "two": a lopsided hump needs two Gaussians."""
    found = shape(np.random.default_rng(2).exponential(size=400))
    assert found.bic > 0 and found.p > 0.05


@pytest.mark.parametrize("apart", [0.0, 3.0])
def test_bic_of_two_humps_is_in_the_shifts_own_unit(apart):
    values = np.random.default_rng(5).exponential(2, size=300)
    values[:100] += apart
    humps = two_humps(values)
    one, two = (GaussianMixture(n, n_init=5, random_state=0).fit(values[:, None]) for n in (1, 2))
    assert humps.bic == pytest.approx(one.bic(values[:, None]) - two.bic(values[:, None]), abs=2)
    assert values[humps.lower].max() <= values[~humps.lower].min()


def test_a_group_adds_what_nothing_else_says_and_no_more():
    rng = np.random.default_rng(4)
    columns = rng.normal(size=(600, 2))
    columns[::7, 1] = np.nan
    group, fold = rng.integers(0, 2, 600), np.arange(600) % 5
    chance = 1 / (1 + np.exp(-columns[:, 0] - 2 * (group - 0.5)))
    target = (rng.random(600) < chance).astype(int)

    def adds(group: np.ndarray, columns: np.ndarray = columns) -> dict:
        return adds_columns(target, group, columns, fold, Draws(resamples=300))

    useful = adds(group)
    assert useful["adds_gain_low"] > 0
    assert useful["adds_auroc_with"] > useful["adds_auroc_without"] + 0.02
    assert adds(rng.integers(0, 2, 600))["adds_gain_low"] <= 0
    assert adds(columns[:, 0] > 0)["adds_gain_low"] <= 0  # a copy of a column
    assert np.isnan(adds(np.ones(600))["adds_gain"])
    # 0.3 for everybody says nothing, though its mean is rounded and so shows a spread.
    more = adds(group, np.column_stack([columns, np.full(600, 0.3)]))
    assert more == pytest.approx(useful, abs=1e-6)  # two descents to one minimum


@pytest.mark.parametrize(("n", "width"), [(40, 100), (300, 20)])
def test_mahalanobis_is_that_of_the_dense_ledoit_wolf_covariance(n, width):
    rng = np.random.default_rng(5)
    states = rng.normal(size=(n, width)) @ rng.normal(size=(width, width)) + 3
    new = rng.normal(size=(7, width)) * 4
    mean, scale = states.mean(axis=0), states.std(axis=0)
    dense = LedoitWolf(assume_centered=True).fit((states - mean) / scale).covariance_
    y = (new - mean) / scale
    wanted = np.sqrt(np.einsum("ij,jk,ik->i", y, np.linalg.inv(dense), y))
    assert Mahalanobis(states)(new) == pytest.approx(wanted, rel=1e-10)


def test_a_refit_probe_finds_what_was_only_moved():
    rng = np.random.default_rng(6)
    z = np.arange(300) % 2
    clean = rng.normal(size=(300, 10))
    clean[:, 0] += 3 * (2 * z - 1)
    moved = clean.copy()
    moved[:, [0, 1]] = clean[:, [1, 0]]  # the truth is now where the clean probe never looked
    gone = clean.copy()
    gone[:, 0] = rng.normal(size=300)
    config = Config(model="x", data=("x",), C=1.0, resamples=100)

    def columns(knocked: np.ndarray) -> dict:
        readings = Readings(
            ids=tuple(map(str, range(300))),
            z=z,
            fold=np.arange(300) // 2 % 5,
            probes=("paper",),
            logits={"clean": clean[None, :, :1], "knockout": knocked[None, :, :1]},
        )
        return refit_columns((clean, knocked), readings, 1, config=config, entity=None)

    for knocked, area in ((moved, 0.99), (gone, 0.5)):
        found = columns(knocked)
        assert found["refit_auroc"] == pytest.approx(area, abs=0.11)
        assert found["knockout_auroc"] == pytest.approx(0.5, abs=0.11)
    same = columns(clean)
    assert same["moved_norm"] == 0 and same["moved_mahalanobis"] == pytest.approx(1)
    expected = np.mean(np.linalg.norm(moved - clean, axis=1) / np.linalg.norm(clean, axis=1))
    assert columns(moved)["moved_norm"] == pytest.approx(expected)
