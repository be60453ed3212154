"""Probes and token probability together, on worlds whose best weights are known."""

from __future__ import annotations

import numpy as np
import pytest
from kit.detect_worlds import material, plain, two_sources
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from anchorscope.detect.evaluate import evaluate, fit_all, transfer_table
from anchorscope.detect.kinds.combined import Combined, fit_weights
from anchorscope.detect.material import join
from anchorscope.stats.ranking import auroc


def test_the_weights_are_those_of_a_logistic_regression_and_never_below_zero():
    rng = np.random.default_rng(0)
    z = np.arange(600) % 2
    scores = np.column_stack([rng.normal(2 * z, 3), 5 + 0.1 * rng.normal(z, 1)])
    want = LogisticRegression(C=1e8, max_iter=1000).fit((scores - 5) / [3, 0.1], z)
    weights = fit_weights(scores, z)
    assert weights[:2] * [3, 0.1] == pytest.approx(want.coef_[0], abs=0.01)
    turned = fit_weights(scores * [1, -1], z)
    assert turned[1] == 0
    assert turned[0] == pytest.approx(fit_weights(scores[:, :1], z)[0], rel=1e-3)
    assert fit_weights(-scores, z)[:2].tolist() == [0, 0]


def test_two_independent_scores_are_better_than_either_as_theory_says():
    scores = evaluate(
        two_sources(n=1200), names=("min-log-prob", "probe", "combined", "auto"), folds=3,
        splits=("entity",),
    )  # fmt: skip
    found = {name: auroc(of["z"], of["score"]) for name, of in scores.groupby("detector")}
    # Two normals 2d apart have AUROC Φ(√2 d); independent ones add the squares of d.
    assert found["min-log-prob"] == pytest.approx(norm.cdf(np.sqrt(2) * 0.8), abs=0.02)
    assert found["combined"] == pytest.approx(norm.cdf(np.sqrt(2) * np.hypot(1, 0.8)), abs=0.02)
    assert found["combined"] > max(found["min-log-prob"], found["probe"]) + 0.02
    assert found["auto"] == found["combined"]


def test_held_out_scores_come_from_weights_that_did_not_see_them():
    made = two_sources()
    fitted = Combined().fit(made)
    logit = fitted.base_._inner_scores(made)
    least = [-text.log_probs[1] for text in made.texts]  # E_A is the second token
    pairs = np.column_stack([logit, np.clip(least, *np.quantile(least, [0.01, 0.99]))])
    for fold in np.unique(made.inner):
        held = made.inner == fold
        weights = fit_weights(pairs[~held], made.z[~held])[:2]
        got, want = fitted.inner_scores_[held], pairs[held] @ weights
        assert np.corrcoef(got, want)[0, 1] == pytest.approx(1, abs=1e-12)
    whole = pairs @ fitted.weights_[:2] + fitted.weights_[2]
    assert fitted.inner_scores_ == pytest.approx(whole, abs=0.5)
    assert fitted.inner_scores_.mean() == pytest.approx(whole.mean(), abs=0.05)


def test_several_datasets_are_held_out_as_a_whole():
    parts = [two_sources(n=90, name=name, seed=n) for n, name in enumerate("abc")]
    both = join(parts)
    assert both.apart().inner.tolist() == np.repeat([0, 1, 2], 90).tolist()
    assert len(np.unique(both.inner[:90])) == 3  # every other detector's folds mix them
    assert parts[0].apart() is parts[0]
    few = join([parts[0], material([0] * 30, {"clean": np.zeros((30, 1, 6))}, name="e")])
    assert few.apart() is few  # without "a" nothing of class 1 is left to learn from


def test_probes_that_do_not_travel_get_little_weight():
    """Each dataset holds the truth in a direction of its own; log-probability is the same in all.

    Weights from folds by entity trust the probes, which say nothing on the third dataset.
    """
    parts = [
        two_sources(name=name, direction=n, strength=2.0, seed=n) for n, name in enumerate("abc")
    ]
    names = ("min-log-prob", "probe", "combined")
    table = transfer_table(parts, model="m", names=names, resamples=100)
    left_out = table[table["kind"] == "left-out"].groupby("detector")["auroc"].mean()
    assert left_out["probe"] < 0.65
    assert left_out["combined"] > left_out["min-log-prob"] - 0.02
    by_entity = Combined()
    both = join(parts[:2])
    both.memo["apart"] = both
    trusted = by_entity.fit(both).decision_function(parts[2])
    assert auroc(parts[2].z, trusted) < left_out["min-log-prob"] - 0.1


def test_auto_takes_combined_unless_something_is_clearly_better():
    fitted = fit_all(plain(), ("min-log-prob", "probe", "combined", "auto"))
    assert fitted["auto"].best_ is fitted["combined"]
