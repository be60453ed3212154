"""What pathways know, and what knows pathways: against scipy, scikit-learn and planted truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from kit.piece_inputs import inputs_for, row
from scipy.special import expit
from scipy.stats import hypergeom, kruskal
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from anchorscope.evidence.answer_only import question_probe_table
from anchorscope.evidence.awareness import awareness_tables, cross_fitted, gaps_of_state
from anchorscope.evidence.boundary import boundary_model_table, boundary_table
from anchorscope.evidence.pieces import evidence_tables
from anchorscope.probes.cross_fit import fold_logits
from anchorscope.probes.folds import Covariates
from anchorscope.probes.probe_set import ProbeSet, Readings, read_abstained
from anchorscope.stats.intervals import Draws, difference, rate
from anchorscope.stats.logistic import fit_logistic

N = 400


def made(seed: int = 0, *, q: np.ndarray | None = None, n: int = N, z=None) -> Readings:
    """Readings of two layers in which the three probes agree on Q."""
    rng = np.random.default_rng(seed)
    z = np.arange(n) % 2 if z is None else z
    belief = 1.5 * (2 * z - 1) + rng.normal(0, 1.5, n)
    clean = np.repeat((belief + rng.normal(0, 0.1, (3, n)))[..., None], 2, axis=2)
    q = rng.random(n) < 0.4 if q is None else q
    knockout = np.where(q[None, :, None], -clean, clean)
    return Readings(ids=tuple(f"q{i}" for i in range(n)), z=z, fold=np.arange(n) % 5,
                    probes=("paper", "a", "b"),
                    logits={"clean": clean, "knockout": knockout})  # fmt: skip


def test_newcombes_published_example():
    """56 of 70 against 48 of 80: 0.2, from 0.0524 to 0.3339 (Newcombe 1998, method 10)."""
    found = difference(*(rate(np.arange(n) < hits) for hits, n in ((56, 70), (48, 80))))
    assert found[:3] == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


def test_boundary_by_pandas_and_tests_by_scipy():
    readings = made()
    popularity = np.random.default_rng(1).normal(3, 1, N) + 0.8 * (readings.z == 0)
    popularity[:20] = np.nan
    covariates = Covariates(popularity, np.full(N, np.nan))
    inputs = inputs_for(readings, covariates=covariates, resamples=200)
    table = boundary_table(inputs, "strict", "predicted-wrong")
    q = (readings.of("a")[:, 1] > 0) != (readings.of("a", "knockout")[:, 1] > 0)
    frame = pd.DataFrame({"q": q, "right": readings.z == 0, "pop": popularity,
                          "wrong": readings.of("b")[:, 1] > 0})  # fmt: skip
    here = frame[frame["wrong"]]
    at = {"layer": 2, "mode": "strict", "subset": "predicted-wrong"}
    shares = here.groupby("q")["right"].agg(["mean", "size", "sum"])
    found = {p: row(table, **at, measure="accuracy", pathway=p) for p in ("Q", "A", "Q-A")}
    assert found["Q"]["value"] == pytest.approx(shares.loc[True, "mean"])
    assert found["A"]["n"] == shares.loc[False, "size"]
    gap = shares.loc[True, "mean"] - shares.loc[False, "mean"]
    assert found["Q-A"]["value"] == pytest.approx(gap)
    law = hypergeom(len(here), here["right"].sum(), shares.loc[True, "size"])
    every = law.pmf(np.arange(len(here) + 1))
    seen = law.pmf(shares.loc[True, "sum"])
    assert found["Q-A"]["p"] == pytest.approx(every[every <= seen * (1 + 1e-7)].sum(), rel=1e-6)
    known = here.dropna()
    pops = [known.loc[known["q"] == side, "pop"] for side in (True, False)]
    measured = {p: row(table, **at, measure="popularity", pathway=p) for p in ("Q", "Q-A")}
    assert measured["Q"]["value"] == pytest.approx(pops[0].mean())
    assert measured["Q"]["n"] == len(pops[0])
    assert measured["Q-A"]["p"] == pytest.approx(kruskal(*pops).pvalue, abs=0.02)
    assert "abstention" not in set(table["measure"])


def test_abstentions_are_counted_beside_answers():
    rng = np.random.default_rng(0)
    readings = made(q=np.arange(N) < 200)
    abstained = made(5, q=np.arange(50) < 5, n=50, z=rng.integers(0, 2, 50))
    table = boundary_table(inputs_for(readings, abstained=abstained), "strict", "all")
    at = {"layer": 1, "mode": "strict", "subset": "all", "measure": "abstention"}
    q, a, gap = (row(table, **at, pathway=p) for p in ("Q", "A", "Q-A"))
    assert (q["n"], a["n"]) == (205, 245)
    assert (q["value"], a["value"]) == pytest.approx((5 / 205, 45 / 245))
    assert gap["high"] < 0 and gap["p"] < 1e-4
    accuracy = row(table, **at | {"measure": "accuracy"}, pathway="Q")
    assert accuracy["n"] == 200  # an abstention is no wrong answer here
    assert "popularity" not in set(table["measure"])  # nothing is known of it


def test_unseen_questions_get_the_mean_of_the_folds():
    rng = np.random.default_rng(2)
    weights = rng.normal(size=(3, 5, 2, 4)).astype(np.float32)
    probes = ProbeSet(probes=("paper", "a", "b"), weights=weights,
                      intercept=rng.normal(size=(3, 5, 2)), n_train=np.ones((3, 5), dtype=int),
                      C=1.0, balance="weights")  # fmt: skip
    states = rng.normal(size=(6, 2, 4))
    states_out = states.copy()
    states_out[1] = np.nan
    found = read_abstained(probes, {"clean": states, "knockout": states_out}, ids=list("abcdef"))
    each = [states[3, 1] @ weights[2, f, 1] + probes.intercept[2, f, 1] for f in range(5)]
    assert found.of("b")[3, 1] == pytest.approx(np.mean(each))
    assert np.isnan(found.of("b", "knockout")[1]).all()


def test_logistic_by_sklearn_and_a_numerical_information():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = (rng.random(300) < expit(x @ [1.0, -0.5, 0.0] + 0.3)).astype(int)
    coefficient, error = fit_logistic(x, y) or (None, None)
    other = LogisticRegression(C=1e9, tol=1e-10, max_iter=2000).fit(x, y)
    assert coefficient == pytest.approx([*other.intercept_, *other.coef_[0]], abs=1e-4)
    design = np.column_stack([np.ones(300), x])
    p = expit(design @ coefficient)
    information = (design * (p * (1 - p))[:, None]).T @ design
    assert error == pytest.approx(np.sqrt(np.diag(np.linalg.inv(information))), rel=1e-3)
    assert fit_logistic(x, (x[:, 0] > 0).astype(int)) is None  # separated: no greatest likelihood
    assert fit_logistic(x, np.ones(300, dtype=int)) is None


def test_the_model_finds_a_planted_pathway_and_not_an_absent_one():
    rng = np.random.default_rng(4)
    known = np.column_stack([rng.normal(3, 1, 600), rng.integers(8, 20, 600)]).astype(float)
    known[::7, 0] = np.nan
    q = rng.random(600) < 0.5
    z = (rng.random(600) > expit(2.5 * (q - 0.5))).astype(int)  # Q is right more often
    covariates = Covariates(*known.T)
    table = boundary_model_table(inputs_for(made(1, q=q, n=600, z=z), covariates=covariates))
    planted = row(table, layer=1, mode="strict", term="pathway")
    assert planted["low"] > 0 and planted["p"] < 0.01 and planted["n"] == 600
    absent = boundary_model_table(inputs_for(made(1, n=600), covariates=covariates))
    assert row(absent, layer=1, mode="strict", term="pathway")["p"] > 0.01
    assert row(absent, layer=1, mode="strict", term="logit")["high"] < 0
    gap = known.copy()
    gap[:, 0], gap[0, 0] = np.nan_to_num(known[:, 0], nan=3.0), np.nan  # one unknown, and wrong
    lone = boundary_model_table(inputs_for(made(1, n=600), covariates=Covariates(*gap.T)))
    assert lone["coefficient"].notna().all()
    blind = boundary_model_table(inputs_for(made(1, n=600)))
    assert blind.query("term == 'popularity'")["coefficient"].isna().all()
    assert blind.query("term == 'logit'")["coefficient"].notna().all()


def test_awareness_reads_a_planted_direction_and_not_the_logit():
    readings = made(2)
    rng = np.random.default_rng(7)
    q = (readings.of("a")[:, 0] > 0) != (readings.of("a", "knockout")[:, 0] > 0)
    states = rng.normal(size=(N, 2, 12))
    states[:, 1, 3] += 2.0 * q  # the second layer knows, the first does not
    inputs = inputs_for(readings, states={"clean": states}, resamples=100, C=0.1)
    table = evidence_tables(("awareness",), inputs)["awareness"]
    assert set(table["predictor"]) == {"state", "signed-logit", "margin", "simple"}
    second = awareness_tables(inputs, 2)["awareness"]
    assert second.equals(table.query("layer == 2").reset_index(drop=True))
    for subset in ("all", "predicted-right", "predicted-wrong"):
        at = {"mode": "strict", "subset": subset}
        assert row(table, layer=2, predictor="state", **at)["low"] > 0.75
        assert abs(row(table, layer=1, predictor="state", **at)["auroc"] - 0.5) < 0.15
        assert abs(row(table, layer=2, predictor="signed-logit", **at)["auroc"] - 0.5) < 0.15


def test_a_pathway_that_is_the_predicted_class_is_known_by_the_logit_alone():
    one = made(3)
    clean = np.repeat(one.logits["clean"][:1], 3, axis=0)  # three probes of one mind
    collapsed = replace(one, logits={"clean": clean, "knockout": np.abs(clean)})
    states = {"clean": np.random.default_rng(0).normal(size=(N, 2, 12))}
    table = awareness_tables(inputs_for(collapsed, states=states, resamples=100), 1)["awareness"]
    for mode in ("paper", "strict"):
        found = row(table, layer=1, mode=mode, subset="all", predictor="signed-logit")
        assert found["auroc"] == 1.0
    inside = table.query("subset == 'predicted-right'")
    assert len(inside) and inside["auroc"].isna().all()  # one group only: nothing to tell apart


def test_no_fold_has_a_say_in_its_own_scores():
    rng = np.random.default_rng(0)
    x, label, fold = rng.normal(size=(100, 12)), np.arange(100) % 2 * 1.0, np.arange(100) % 5
    turned = np.where(fold == 2, 1 - label, label)
    for columns in (x, x[:, :1], x[:, :3]):
        if columns is x:
            one, other = (fold_logits(x, y[None], fold, C=0.1)[0] for y in (label, turned))
        else:
            one, other = (cross_fitted(columns, y, fold) for y in (label, turned))
        # Fits that share a batch may differ in the last digits.
        assert np.allclose(one[fold == 2], other[fold == 2], atol=1e-5)
        if columns.shape[1] > 1:  # of one column only its side is learnt, which may stay
            assert one[fold == 1].tolist() != other[fold == 1].tolist()


def test_the_question_probe_by_sklearn():
    rng = np.random.default_rng(1)
    z, fold = np.arange(200) % 2, np.arange(200) // 2 % 5
    states = rng.normal(size=(200, 2, 10)) + 0.8 * z[:, None, None] * (np.arange(10) == 4)
    states[3] = np.nan
    readings = Readings(ids=tuple(map(str, range(200))), z=z, fold=fold, probes=("paper",),
                        logits={"clean": np.zeros((1, 200, 2))})  # fmt: skip
    inputs = inputs_for(readings, states={"question-only": states}, C=1.6, resamples=100)
    table = question_probe_table(inputs, 2)
    known = np.arange(200) != 3
    # Against the sum of the losses of 160 answers.
    plain = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, class_weight="balanced",
                                                               tol=1e-8))  # fmt: skip
    score = cross_val_predict(plain, states[known, 1], z[known], cv=PredefinedSplit(fold[known]),
                              method="decision_function")  # fmt: skip
    found = row(table, layer=2)
    assert found["auroc"] == pytest.approx(roc_auc_score(z[known], score), abs=1e-3)
    assert found["n"] == 199 and found["auroc_low"] < found["auroc"] < found["auroc_high"]


def test_the_state_is_compared_with_what_is_simpler_on_the_same_samples():
    """Two scores of the same samples: AUROC by scikit-learn, and no gap for a score twice."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 200).astype(float)
    state = label + rng.standard_normal(200)
    weak = label + 4 * rng.standard_normal(200)
    weak[:7] = np.nan
    label[190:] = np.nan
    state[190:] = weak[190:] = np.nan
    scores = {"state": state, "signed-logit": weak, "margin": state}
    gaps = gaps_of_state(label, scores, Draws(seed=0, resamples=300), entity=np.arange(200))
    found = {name: rest for name, *rest in gaps}
    z, kept = label[7:190], slice(7, 190)
    wanted = roc_auc_score(z, state[kept]) - roc_auc_score(z, weak[kept])
    n, gap, low, high = found["signed-logit"]
    assert (n, gap) == (183, pytest.approx(wanted))
    assert 0 < low < gap < high
    assert found["margin"][1:] == [0, 0, 0]
    assert "simple" not in found
