"""Each kind of detector on planted truths: what it must find, and what none may find."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from kit.detect_worlds import material, noise, plain, two_pathways, two_sources, unequal
from scipy.special import logit
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from anchorscope.detect.evaluate import detectors_table, evaluate, transfer_table
from anchorscope.detect.kinds import (
    Auto,
    Probes,
    fit_weights,
    make_method,
    same_answer,
)
from anchorscope.detect.material import Arrays, SampledAnswers
from anchorscope.detect.pathway_kinds import PathwayReweighting, betas
from anchorscope.errors import UserError
from anchorscope.stats.ranking import auroc


def by_detector(scores, split="entity"):
    rows = scores[scores["split"] == split]
    return {name: auroc(rows["z"], rows["score"]) for name, rows in rows.groupby("detector")}


def test_no_detector_finds_anything_in_noise():
    scores = evaluate(
        [noise(layers=4)], names=("probe", "combined", "mop", "length", "auto"), folds=3
    )
    for split in ("random", "entity"):
        for name, found in by_detector(scores, split).items():
            assert 0.36 < found < 0.64, f"{name} finds {found} in noise: something leaks"


def test_what_belongs_to_the_entity_is_only_found_with_folds_at_random():
    rng = np.random.default_rng(0)
    entity = np.repeat(np.arange(40), 6)
    home, truth = rng.standard_normal((40, 1, 30)), rng.integers(0, 2, 40)
    states = home[entity] + 0.1 * rng.standard_normal((240, 1, 30))
    made = material(truth[entity], {"clean": states}, entities=[f"e{i}" for i in entity])
    scores = evaluate([made], names=("probe",), folds=4)
    assert by_detector(scores, "random")["probe"] > 0.95
    assert by_detector(scores, "entity")["probe"] < 0.75


def test_token_baselines_by_hand():
    log_probs = [(-0.1, -3.0), (-2.0, -0.2)]
    made = material([0, 1], {"clean": np.zeros((2, 1, 2))}, log_probs=log_probs)
    expected = {
        "mean-log-prob": [1.55, 1.1],
        "min-log-prob": [3.0, 2.0],
        "entity-log-prob": [3.0, 0.2],  # E_A is the second token
        "sum-log-prob": [3.1, 2.2],
    }
    for name, values in expected.items():
        assert make_method(name).decision_function(made) == pytest.approx(values)


def test_mop_keeps_how_often_each_pathway_is_wrong():
    """Experts of balanced classes gave 0.90 here: a group's base rate was lost."""
    made = unequal()
    found = by_detector(evaluate([made], names=("mop",), folds=3, splits=("entity",)))
    x, q = made.layer("clean", 1), made.memo["q"]
    own = np.where(q, x[:, 0], x[:, 1])  # ± strength, with a variance of 0.5² + 0.1²
    ideal = 2 * 0.5 * own / 0.26 + logit(np.where(q, 0.15, 0.7))
    assert found["mop"] > auroc(made.z, ideal) - 0.02


def test_where_reweighting_says_nothing_pr_is_the_single_probe():
    made = plain(n=180, layers=1, width=4)
    rng = np.random.default_rng(1)
    states = {(f"reweight{sign}1.0", 1): rng.standard_normal((180, 4)) for sign in "+-"}
    states |= {(name, 1): made.layer(name, 1) for name in ("clean", "knockout")}
    made = replace(made, bank=Arrays(states, layers=1))
    fitted, probe = PathwayReweighting().fit(made), Probes().fit(made)
    assert fitted.beta_ == 0
    assert fitted.inner_auroc_ == pytest.approx(probe.inner_auroc_, abs=0.02)
    assert fitted.decision_function(made) == pytest.approx(probe.decision_function(made), abs=1e-3)


def test_pathway_reweighting_picks_the_sign_by_pathway_and_the_stronger_beta():
    made = two_pathways()
    assert betas(made) == (1.0, 2.0)
    fitted = PathwayReweighting().fit(made)
    assert fitted.beta_ == 2.0
    assert np.mean(fitted.predicts_q(made) == made.memo["q"]) > 0.9
    found = by_detector(evaluate([made], names=("probe", "pr"), folds=3, splits=("entity",)))
    assert found["pr"] > found["probe"] + 0.05


def test_a_fit_never_looks_at_the_answers_it_is_tested_on():
    """Turning the labels of a fold round changes no score of that fold."""
    made, options = plain(n=180), {"splits": ("entity",), "folds": 3}
    names = ("probe", "combined", "mop", "tfidf-both", "auto")
    first = evaluate([made], names=names, **options)
    tested = set(first[first["fold"] == 0]["id"])
    turned = [1 - z if id in tested else z for id, z in zip(made.ids, made.z, strict=True)]
    again = evaluate([replace(made, z=np.array(turned), memo={})], names=names, **options)
    for column in ("score", "probability"):
        before, after = (rows[rows["fold"] == 0][column].to_numpy() for rows in (first, again))
        assert np.array_equal(before, after)
        others = (rows[rows["fold"] == 1][column].to_numpy() for rows in (first, again))
        assert not np.array_equal(*others)  # they did learn from the labels that were turned


def test_a_detector_names_what_the_material_lacks():
    made = plain()
    assert "question-only" in make_method("question-only").lacks(made)
    assert "P(True) is missing for 240" in make_method("p-true").lacks(made)
    with pytest.raises(UserError, match="no states of 'reweight"):
        make_method("pr").fit(made)
    with pytest.raises(UserError, match=r"Unknown detector 'magic'. Accepted: auto, mean-log-prob"):
        make_method("magic")


def test_auto_prefers_the_first_candidate_where_nothing_is_clearly_better():
    first, other = make_method("combined"), make_method("probe")
    for one, area in ((first, 0.80), (other, 0.81)):
        one.inner_auroc_, one.calibration_ = area, None
    assert Auto().take([first, other]).best_ is first
    other.inner_auroc_ = 0.85
    assert Auto().take([first, other]).best_ is other


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
        [two_sources(n=1200)], names=("min-log-prob", "probe", "combined", "auto"), folds=3,
        splits=("entity",),
    )  # fmt: skip
    found = {name: auroc(rows["z"], rows["score"]) for name, rows in scores.groupby("detector")}
    # Two normals 2d apart have AUROC Φ(√2 d); independent ones add the squares of d.
    assert found["min-log-prob"] == pytest.approx(norm.cdf(np.sqrt(2) * 0.8), abs=0.02)
    assert found["combined"] == pytest.approx(norm.cdf(np.sqrt(2) * np.hypot(1, 0.8)), abs=0.02)
    assert found["combined"] > max(found["min-log-prob"], found["probe"]) + 0.02
    assert found["auto"] == found["combined"]


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


WORDS = ("Paris", "It is Paris.", "London", "london", "Rome", "I don't know", "Not sure")
MEANS = {"Paris": "p", "It is Paris.": "p", "London": "l", "london": "l", "Rome": "r",
         "I don't know": "?", "Not sure": "?"}  # fmt: skip


def drawn_world(n=60, k=6, seed=0):
    """Answers with `k` companions drawn from WORDS."""
    rng = np.random.default_rng(seed)
    world = plain(n=n)
    texts = []
    for text in world.texts:
        drawn = tuple(rng.choice(WORDS, size=k))
        sampled = SampledAnswers(
            texts=drawn,
            passes=3 * k,
            ms=7.0,
        )
        texts.append(
            replace(text, question="What is the capital?", answer="Paris", sampled=sampled)
        )
    return replace(world, texts=tuple(texts))


def by_hand(text):
    """Entropy over meanings that were assigned by hand, term by term."""
    means = [MEANS[answer] for answer in text.sampled.texts]
    shares = [means.count(one) / len(means) for one in set(means)]
    return -sum(p * math.log(p) for p in shares)


def test_scores_of_drawn_answers_are_those_of_meanings_assigned_by_hand():
    world = drawn_world()
    counted = make_method("semantic-entropy").decision_function(world)
    assert counted == pytest.approx([by_hand(text) for text in world.texts])
    assert len({round(v, 6) for v in counted}) > 5
    score = make_method("self-check").decision_function(world)
    wanted = [np.mean([MEANS[s] != "p" for s in t.sampled.texts]) for t in world.texts]
    assert score == pytest.approx(wanted)
    assert same_answer("The answer is Paris", "Paris", "Where?")
    assert same_answer("I don't know", "", "Where?")
    assert not same_answer("👍", "yes", "Is it?")


def test_the_table_has_the_cost_of_drawn_answers():
    world = drawn_world()
    table = detectors_table(
        evaluate([world], names=("self-check", "probe"), folds=3), model="m", resamples=100
    ).set_index(["split", "detector"])
    assert table.loc[("entity", "self-check"), "extra_passes"] == 18
    assert table.loc[("entity", "self-check"), "ms_per_answer"] >= 7
    assert table.loc[("entity", "probe"), "extra_passes"] == 0


def test_token_features_find_what_no_single_statistic_holds():
    """The class is in the last token's entropy alone, above or below that of the first."""
    rng = np.random.default_rng(0)
    world = plain(n=300, strength=0.0)
    texts = []
    for text, z in zip(world.texts, world.z, strict=True):
        first = rng.normal()
        entropies = (first + 5, first + 5 + (1 if z else -1))
        texts.append(replace(text, entropies=entropies, log_probs=(-1.0, -2.0)))
    world = replace(world, texts=tuple(texts))
    scores = evaluate(
        [world], names=("token-features", "min-log-prob"), splits=("entity",), folds=3
    )
    table = detectors_table(scores, model="m", resamples=100).set_index("detector")
    assert table.loc["token-features", "auroc"] > 0.99
    assert table.loc["min-log-prob", "auroc"] < 0.8
