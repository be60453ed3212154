"""κ and class collapse, against scikit-learn and against counting."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score, homogeneity_score

from anchorscope.pathways.strict_tables import agreement, class_collapse, explained
from anchorscope.probes.readings import Readings
from anchorscope.records import Estimate
from anchorscope.stats.agreement import kappa, kappa_interval
from anchorscope.stats.intervals import Draws, weighted


@pytest.mark.parametrize("seed", range(8))
def test_kappa_is_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 60))
    one = rng.integers(0, 2, n)
    other = np.where(rng.random(n) < 0.7, one, 1 - one)
    one[:2], other[:2] = (0, 1), (1, 0)  # both groups on both sides
    assert kappa(one, other) == pytest.approx(cohen_kappa_score(one, other), abs=1e-12)


def test_kappa_leaves_out_what_is_unknown():
    one, other = np.array([1, 0, 1, 0, np.nan, 1]), np.array([1, 0, 0, 0, 1, np.nan])
    assert kappa(one, other) == pytest.approx(cohen_kappa_score([1, 0, 1, 0], [1, 0, 0, 0]))


@pytest.mark.parametrize("one", [[1, 1, 1, 1], [0, 0, 0, 0], []])
def test_kappa_of_an_empty_group_is_no_number(one):
    other = [1, 0, 1, 0][: len(one)]
    assert np.isnan(kappa(np.array(one), np.array(other)))
    found = kappa_interval(np.array(one), np.array(other), seed=0)
    assert np.isnan(found[:3]).all() and found.n == len(one)


def test_interval_is_that_of_drawing_questions():
    rng = np.random.default_rng(1)
    one = rng.integers(0, 2, 150)
    other = np.where(rng.random(150) < 0.8, one, 1 - one)
    found = kappa_interval(one, other, seed=3, resamples=4000)
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
    assert found["kappa_right"].value == pytest.approx(cohen_kappa_score([1, 0, 1], [1, 0, 0]))
    assert np.isnan(found["kappa_next"].value)  # there is no next layer


def test_weighted_mean_by_numbers_and_without_unknowns():
    one, other = Estimate(0.2, 0.1, 0.3, 30), Estimate(0.6, 0.5, 0.7, 10)
    nothing = Estimate(np.nan, np.nan, np.nan, 5)
    assert weighted([one, other, nothing]).value == pytest.approx(0.3)
    assert np.isnan(weighted([nothing]).value)


@pytest.mark.parametrize("seed", range(5))
def test_explained_is_scikit_learns_homogeneity(seed):
    rng = np.random.default_rng(seed)
    by = rng.integers(0, 2, 200)
    group = np.where(rng.random(200) < 0.8, by, rng.integers(0, 2, 200))
    assert explained(group, by) == pytest.approx(homogeneity_score(group, by), abs=1e-12)


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
