"""A second model's states as a control: worlds in which self-knowledge is planted, and is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from kit.detect_worlds import material, write_run
from sklearn.metrics import roc_auc_score

from anchorscope.detect.evaluate import evaluate
from anchorscope.detect.peer import peer_table, share
from anchorscope.errors import UserError


def two_models(*, self_knowledge: float, n: int = 400, seed: int = 0):
    """Two models that find the same questions hard, and each knows when it is wrong or does not."""
    rng = np.random.default_rng(seed)
    hard = rng.random(n) < 0.5
    out = []
    for _ in range(2):
        slips = rng.random(n) < 0.3
        z = (hard ^ slips).astype(int)
        clean = rng.standard_normal((n, 1, 6))
        clean[:, 0, 0] += 2.0 * (2 * hard - 1)
        clean[:, 0, 1] += self_knowledge * (2 * z - 1)
        out.append(material(z, {"clean": clean}))
    return out


def test_what_any_reader_knows_is_no_gap_and_what_the_model_knows_of_itself_is_one():
    def gaps(strength: float) -> pd.DataFrame:
        own, peer = two_models(self_knowledge=strength)
        how = {"model": "m", "peer": "p", "folds": 3, "resamples": 400}
        return peer_table([own], [peer], **how).set_index("answers")

    known, unknown = gaps(2.0), gaps(0.0)
    assert known.loc["all", "gap_low"] > 0.05
    assert known.loc["disagree", "gap_low"] > 0.1
    assert known.loc["disagree", "p"] < 0.05
    assert unknown["gap_low"].max() < 0
    assert unknown["gap_high"].min() > 0
    assert unknown["p"].min() > 0.05


def test_the_table_is_that_of_the_shared_questions():
    own, peer = two_models(self_knowledge=1.0, n=200)
    shuffled = peer.take(np.random.default_rng(1).permutation(150))
    row = peer_table([own], [shuffled], model="m", peer="p", folds=3, resamples=100).iloc[0]
    shared = own.take(np.isin(own.ids, shuffled.ids))
    scores = evaluate(shared, names=("probe",), splits=("entity",), folds=3)
    assert row["n"] == 150
    assert row["own"] == pytest.approx(roc_auc_score(scores["z"], scores["score"]))
    assert row["gap"] == pytest.approx(row["own"] - row["of_peer"])


def test_a_questions_states_are_those_of_its_own_id():
    own, peer = two_models(self_knowledge=1.0, n=120)
    order = np.random.default_rng(2).permutation(120)
    pair = share(own, peer.take(order))
    assert pair.peer.ids == pair.own.ids == own.ids
    assert np.array_equal(pair.peer.layer("clean", 1), peer.layer("clean", 1))
    assert np.array_equal(pair.peer_z, peer.z)
    assert np.array_equal(pair.peer.z, own.z)


def test_too_few_shared_questions_are_refused():
    own, peer = two_models(self_knowledge=1.0, n=120)
    with pytest.raises(UserError, match="share 30 answered questions"):
        share(own, peer.take(np.arange(30)))
    other = tuple(replace(text, question="Something else?") for text in peer.texts)
    with pytest.raises(UserError, match="share 0 answered questions"):
        share(own, replace(peer, texts=other))


def test_eval_with_a_peer_from_the_command_line(cli, tmp_path):
    own, peer = two_models(self_knowledge=1.0, n=160)
    run = write_run(tmp_path / "own", [own], name="one")
    other = write_run(tmp_path / "peer", [peer], name="two", weights="1")
    words = ["--methods", "probe", "--folds", "3", "--resamples", "100"]
    code, said, _ = cli("detect", "eval", run, "--peer", other, *words)
    assert code == 0
    table = pd.read_csv(run / "tables" / "peer.csv")
    assert list(table["answers"]) == ["all", "disagree"]
    assert set(table["peer"]) == {"two"}
    assert f"of two's {table['of_peer'][0]:.3f}" in said
    elsewhere = write_run(tmp_path / "elsewhere", [replace(peer, name="else")], weights="1")
    code, _, error = cli("detect", "eval", run, "--peer", elsewhere, *words)
    assert code == 2
    assert "share 0 answered questions" in error


def test_entities_are_drawn_for_the_intervals_of_the_table():
    """Ten copies of each answer under one entity say no more than one: the interval stays wide."""
    from anchorscope.detect.compare import detectors_table

    rng = np.random.default_rng(0)
    z = np.repeat(rng.permutation(np.arange(60) % 2), 10)
    log_probs = [(-float(v), -1.0) for v in np.repeat(rng.random(60), 10) + 0.3 * z]
    entities = [f"thing {i // 10}" for i in range(600)]
    world = material(
        z, {"clean": rng.standard_normal((600, 1, 4))}, entities=entities, log_probs=log_probs
    )
    scores = evaluate(world, names=("mean-log-prob",), splits=("entity",), folds=3)
    wide = detectors_table(scores, model="m", resamples=300).iloc[0]
    narrow = detectors_table(scores.drop(columns="entity"), model="m", resamples=300).iloc[0]
    ratio = (wide["auroc_high"] - wide["auroc_low"]) / (narrow["auroc_high"] - narrow["auroc_low"])
    assert ratio > 2
