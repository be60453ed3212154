"""The probe against scikit-learn: same logits, same manners."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import anchorscope
from anchorscope.errors import UserError
from anchorscope.probes.linear_probe import DEFAULT_C, LinearProbe


def states(n: int, width: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Correlated features of very unlike size, and labels they carry with noise."""
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((n, 20))
    x = hidden @ rng.standard_normal((20, width)) + rng.standard_normal((n, width))
    z = (hidden[:, 0] + hidden[:, 1] + rng.standard_normal(n) > 0.7).astype(int)
    return x * np.geomspace(0.01, 100, width) + np.linspace(-50, 50, width), z


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_accepts_it_as_an_estimator():
    check_estimator(LinearProbe())


def test_plain_arrays_go_through_scikit_learns_own_tools():
    """A pipeline, a search by group and calibration, on states that hold z in one direction."""
    rng = np.random.default_rng(0)
    z, entity = (rng.random(6000) < 0.2).astype(int), np.arange(6000) // 3
    x = rng.standard_normal((6000, 30))
    x[:, 0] += 1.5 * z
    words = np.array(["right", "wrong"])[z]
    pipeline = make_pipeline(PCA(30, random_state=0), anchorscope.LinearProbe(balance="none"))
    search = GridSearchCV(pipeline, {"linearprobe__C": [0.03, 3.0]}, cv=GroupKFold(3))
    best = search.fit(x[:4500], words[:4500], groups=entity[:4500]).best_estimator_
    assert list(best.classes_) == ["right", "wrong"]
    ideal = norm.cdf(1.5 / np.sqrt(2))  # of the planted direction alone
    score = best.predict_proba(x[4500:])[:, 1]
    assert roc_auc_score(z[4500:], score) == pytest.approx(ideal, abs=0.03)
    weighted = anchorscope.LinearProbe().fit(x[:4500], z[:4500])
    calibrated = CalibratedClassifierCV(clone(weighted), cv=5).fit(x[:4500], z[:4500])
    # Classes of equal weight make a wrong answer look as likely as a right one, until calibrated.
    assert weighted.predict_proba(x[4500:])[:, 1].mean() > 0.3
    for sure in (score, calibrated.predict_proba(x[4500:])[:, 1]):
        assert sure.mean() == pytest.approx(0.2, abs=0.03)
    again = pickle.loads(pickle.dumps(best))
    assert np.array_equal(again.predict(x), best.predict(x))


@pytest.mark.parametrize(("n", "width"), [(300, 40), (300, 500)])
@pytest.mark.parametrize("balance", ["weights", "none"])
@pytest.mark.parametrize("C", [DEFAULT_C, 30.0])
def test_logits_equal_plain_scikit_learn(n, width, balance, C):
    x, z = states(n, width)
    unseen, _ = states(100, width, seed=1)
    weight = "balanced" if balance == "weights" else None
    # scikit-learn's C is against the sum of the losses.
    plain = LogisticRegression(C=C / n, class_weight=weight, tol=1e-9, max_iter=10_000)
    reference = make_pipeline(StandardScaler(), plain).fit(x, z)
    probe = LinearProbe(C=C, balance=balance).fit(x, z)
    for given in (x, unseen):
        logits = probe.decision_function(given)
        assert np.abs(logits - reference.decision_function(given)).max() < 1e-4 * max(1.0, C)
        assert np.allclose(probe.predict_proba(given), reference.predict_proba(given), atol=1e-4)


def test_twice_the_same_answers_give_the_same_probe():
    # C is per training answer: the penalty does not weaken as their number grows.
    x, z = states(150, 40)
    once, twice = LinearProbe().fit(x, z), LinearProbe().fit(np.r_[x, x], np.r_[z, z])
    assert np.allclose(once.decision_function(x), twice.decision_function(x), atol=1e-4)


def test_a_nearly_constant_feature_far_from_zero_keeps_its_digits():
    # Single-precision weights times a mean of 10^4 must not leak into the logit.
    x, z = states(300, 5)
    x[:, 2] = 1e4 + 1e-3 * z + 1e-3 * np.random.default_rng(0).standard_normal(300)
    reference = make_pipeline(
        StandardScaler(),
        LogisticRegression(C=DEFAULT_C / 300, class_weight="balanced", tol=1e-9, max_iter=10_000),
    ).fit(x, z)
    logits = LinearProbe().fit(x, z).decision_function(x)
    assert np.abs(logits - reference.decision_function(x)).max() < 1e-3


def test_balance_moves_the_middle_for_lopsided_classes():
    rng = np.random.default_rng(0)
    z = (np.arange(400) < 40).astype(int)
    x = rng.standard_normal((400, 5))  # no signal
    assert abs(LinearProbe().fit(x, z).decision_function(x).mean()) < 0.1
    plain = LinearProbe(balance="none").fit(x, z).decision_function(x).mean()
    assert plain == pytest.approx(np.log(40 / 360), abs=0.1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_states_that_are_no_numbers_are_named(bad):
    x, z = states(50, 4)
    probe = LinearProbe().fit(x, z)
    x[7, 3] = bad
    with pytest.raises(UserError, match=r"NaN or inf in 1 of 50 rows \(first: row 7, column 3\)"):
        LinearProbe().fit(x, z)
    with pytest.raises(UserError, match="row 7"):
        probe.decision_function(x)


def test_wrong_choices_and_one_class_are_refused():
    x, z = states(50, 4)
    with pytest.raises(UserError, match=r"Unknown balance 'half'. Accepted: weights, none"):
        LinearProbe(balance="half").fit(x, z)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="C is 0; accepted: any number above 0"):
        LinearProbe(C=0).fit(x, z)
    with pytest.raises(UserError, match="one class"):
        LinearProbe().fit(x, np.ones(50, dtype=int))
