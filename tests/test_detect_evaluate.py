"""The tables of `detect eval`: folds, transfer, a second model, and the command line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from kit.detect_worlds import material, plain, sisters, two_pathways, two_sources, write_run

from anchorscope import parallel
from anchorscope.claims.table import detector_claims
from anchorscope.detect.evaluate import (
    Trial,
    detectors_table,
    evaluate,
    fit_and_score,
    score_rows,
    study,
    to_markdown,
    transfer_table,
)
from anchorscope.detect.kinds import fit_all, make_method
from anchorscope.detect.material import from_run
from anchorscope.errors import UserError
from anchorscope.progress import Quiet
from anchorscope.run_folder.view import RunView
from anchorscope.stats.ranking import auroc, ece

NAMES = ("min-log-prob", "length", "tfidf-question", "probe", "mop", "auto")


@pytest.fixture(scope="module")
def scores() -> pd.DataFrame:
    return evaluate([plain(n=160, layers=2)], names=NAMES, folds=3)


def test_the_table_is_recomputed_from_the_scores(scores):
    table = detectors_table(scores, model="m", resamples=200)
    assert len(table) == 2 * len(NAMES)
    for row in table.to_dict("records"):
        rows = scores[(scores["split"] == row["split"]) & (scores["detector"] == row["detector"])]
        assert row["auroc"] == auroc(rows["z"], rows["score"])
        assert row["auroc_low"] <= row["auroc"] <= row["auroc_high"]
        assert row["brier"] == pytest.approx(((rows["probability"] - rows["z"]) ** 2).mean())
        probe = table[(table["split"] == row["split"]) & (table["detector"] == "probe")]["auroc"]
        assert row["vs_probe"] == pytest.approx(row["auroc"] - probe.item())
    own = table[table["detector"] == "probe"]
    assert own["vs_probe_p"].isna().all()
    text = table[table["detector"].isin(["length", "tfidf-question"])]
    for split, rows in text.groupby("split"):
        best = rows.loc[rows["auroc"].idxmax(), "detector"]
        assert set(table[table["split"] == split]["vs_text_is"]) == {best}


def test_markdown_has_a_row_for_each_detector(scores):
    table = detectors_table(scores, model="m", resamples=200)
    markdown = to_markdown(table)
    own, head = len(NAMES) + 2, len(NAMES) + 1  # the first table begins the text
    assert markdown.count("\n| ") == 2 * own + head
    first = markdown.splitlines()[2 + NAMES.index("probe")]
    by_split = table[table["detector"] == "probe"].set_index("split")["auroc"]
    assert first == f"| probe | {by_split['random']:.3f} / {by_split['entity']:.3f} |"


def test_transfer_finds_which_datasets_go_together():
    table = transfer_table(sisters(), model="m", names=("probe",), resamples=100)
    found = table.set_index(["kind", "train", "test"])["auroc"]
    assert found["transfer", "d0", "d1"] > 0.9
    assert found["transfer", "d0", "d2"] < 0.1
    assert found["transfer", "d2", "d1"] < 0.1
    assert ("left-out", "d0+d2", "d1") in found.index
    assert len(found) == 6 + 3
    with pytest.raises(UserError, match="Transfer needs two datasets"):
        transfer_table(sisters()[:1], model="m", names=("probe",))


def test_transfer_is_compared_with_the_best_single_baseline_on_the_same_draws():
    parts = [two_sources(name=name, direction=n, seed=n) for n, name in enumerate("ab")]
    names = ("min-log-prob", "length", "probe", "combined")
    table = transfer_table(parts, model="m", names=names, resamples=400)
    for (train, test), rows in table.groupby(["train", "test"]):
        rows = rows.set_index("detector")
        assert set(rows["vs_best_is"]) == {"min-log-prob"}  # the probe's direction does not travel
        best, probe = rows.loc["min-log-prob"], rows.loc["probe"]
        assert best["vs_best"] == 0 and np.isnan(best["vs_best_p"])
        assert probe["vs_best"] == pytest.approx(probe["auroc"] - best["auroc"])
        assert probe["vs_best_p"] < 0.05 and probe["vs_best_high"] < 0
        source, other = ({p.name: p for p in parts}[name] for name in (train, test))
        fitted = make_method("min-log-prob").fit(source)
        printed = fitted.calibration_.probability(fitted.decision_function(other))
        assert best["ece"] == pytest.approx(ece(other.z, printed))


def test_runs_of_two_models_are_not_mixed(tmp_path):
    a = write_run(tmp_path / "a", [plain(n=60, name="a")], weights="1")
    b = write_run(tmp_path / "b", [plain(n=60, name="b")], weights="2")
    with pytest.raises(UserError, match="different models"):
        study([a, b])


def test_claims_follow_the_paired_comparison():
    """A mixture that is clearly better, clearly worse, and one that cannot be told apart."""
    rows = []
    for name, value, p in (("a", 0.02, 0.01), ("b", -0.03, 0.04), ("c", 0.05, 0.2)):
        for split in ("random", "entity"):
            vs = {"vs_probe": value, "vs_probe_p": p, "vs_probe_low": -1.0, "vs_probe_high": 1.0}
            rows.append({"dataset": name, "split": split, "detector": "mop", **vs})
    found = detector_claims(pd.DataFrame(rows)).set_index("dataset")
    assert found["strict_decision"].to_dict() == {"a": "holds", "b": "fails", "c": "undecided"}
    assert set(found["claim"]) == {"mop-beats-probe"}
    assert found["paper_value"].to_dict() == {"a": 0.02, "b": -0.03, "c": 0.05}
    assert detector_claims(pd.DataFrame({"detector": ["pr"], "dataset": ["a"]})).empty


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


def test_a_peers_states_are_behind_only_where_the_model_knows_about_itself(tmp_path):
    for strength, differs in ((2.0, True), (0.0, False)):
        own, peer = two_models(self_knowledge=strength)
        shuffled = peer.take(np.random.default_rng(1).permutation(360))
        run = write_run(tmp_path / f"own-{strength}", [own])
        other = write_run(tmp_path / f"peer-{strength}", [shuffled], weights="1")
        found = study([run], peers=[other], names=["probe"], folds=3, resamples=400)
        row = found.table.set_index(["detector", "split"]).loc["peer", "entity"]
        assert row["n"] == 360  # the questions that both answered
        assert (row["vs_probe_p"] < 0.05 and row["vs_probe"] < -0.05) == differs
    elsewhere = write_run(tmp_path / "elsewhere", [replace(peer, name="else")], weights="1")
    with pytest.raises(UserError, match="share no answered question"):
        study([run], peers=[elsewhere], names=["probe"])


FITTED = ("min-log-prob", "probe", "auto")


def test_fitted_elsewhere_is_fitted_here(tmp_path, monkeypatch):
    """Two processes, whatever this machine has: what comes back scores as a fit in this one."""
    monkeypatch.setattr(parallel, "default_workers", lambda: 2)
    run = RunView.open(write_run(tmp_path / "run", [two_pathways(n=120)]))
    whole = from_run(run, "made-up")
    parts = [whole.take(np.arange(120) % 2 != left) for left in range(2)]
    found = fit_and_score([Trial(part, whole) for part in parts], [FITTED] * 2, Quiet())
    for part, frame in zip(parts, found, strict=True):
        assert list(dict.fromkeys(frame["detector"])) == list(FITTED)
        for name, here in fit_all(part, FITTED).items():
            elsewhere = frame[frame["detector"] == name]["score"].to_numpy()
            same = score_rows(here, name, whole)["score"].to_numpy()
            np.testing.assert_array_equal(elsewhere, same, err_msg=name)


def test_eval_from_the_command_line(cli, tmp_path):
    run = write_run(tmp_path / "run", sisters()[:2])
    words = ["--methods", "min-log-prob,tfidf-question,probe", "--transfer"]
    out = tmp_path / "out"
    more = ["--folds", "3", "--resamples", "200", "--out", out]
    code, printed, _ = cli("detect", "eval", run, *words, *more)
    assert code == 0
    assert "TF-IDF question" in printed
    names = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    wanted = ("detectors.csv", "detectors.md", "transfer.csv", "detector_scores.parquet")
    tables = {f"tables/{name}" for name in wanted}
    figures = {f"figures/detect_{n}.{end}" for n in ("roc", "reliability", "risk", "transfer")
               for end in ("png", "svg", "pdf")}  # fmt: skip
    assert names == tables | figures
    moved = pd.read_csv(out / "tables/transfer.csv")
    assert sorted(moved["kind"].unique()) == ["transfer", "within"]
    assert not (run / "tables").exists()


def test_train_prints_auroc_threshold_and_promise(cli, tmp_path):
    run = write_run(tmp_path / "run", [plain(n=300, strength=2.0)])
    out = tmp_path / "detector"
    words = ["--method", "probe", "--folds", "3", "--risk", "0.2", "--out", out]
    code, printed, _ = cli("detect", "train", run, *words)
    assert code == 0
    printed = " ".join(printed.split())
    assert "on unseen entities, from" in printed and "of made-up" in printed
    assert "cannot say between" in printed
    assert "Promised: at most 20% of the answers let through" in printed
    few = write_run(tmp_path / "few", [plain(n=60)])
    code, printed, _ = cli(
        "detect", "train", few, "--method", "probe", "--folds", "3", "--out", out
    )
    assert code == 0
    assert "Trained on few answers: 60, 30 of them wrong." in " ".join(printed.split())


BAD = [
    (["eval", "{run}", "--methods", "magic"], "Unknown detector 'magic'. Accepted: auto, mean"),
    (["eval", "{run}", "--folds", "1"], "Invalid value for '--folds'"),
    (["eval", "nowhere"], "There is no folder 'nowhere'"),
    (["eval", "{run}", "{run}"], "Two of the runs have the same dataset"),
    (
        ["train", "{run}", "--method", "popularity", "--out", "{out}"],
        "'popularity' is only compared (`detect eval`)",
    ),
    (["score", "{out}", "nofile.jsonl", "--out", "{out}"], "There is no file 'nofile.jsonl'"),
    (["score", "{out}"], "Give either a file or --question, and not both."),
    (["score", "{out}", "{run}/a.jsonl", "--answer", "Rome"], "--answer belongs to --question."),
    (["score", "{out}", "--question", " "], "--question is empty."),
    (["train", "{run}", "--method", "pr", "--out", "{out}"], "'pr' is only compared"),
    (["eval", "{run}", "--methods", "pr,p-true"], "None of the detectors can be used"),
    (["eval", "{run}", "--resamples", "99"], "Invalid value for '--resamples'"),
    (["eval", "{run}", "--limit", "8"], "Invalid value for '--limit'"),
    (["collect", "--out", "{out}", "--samples", "1"], "--samples is 1. Accepted: 2 or more"),
    (["push", "{out}", "org/name"], "No detector could be read from"),
]


@pytest.mark.parametrize(
    ("words", "sentence"), BAD, ids=lambda x: x[0] if isinstance(x, list) else ""
)
def test_a_mistake_is_one_sentence_and_writes_nothing(cli, tmp_path, words, sentence):
    run = write_run(tmp_path / "run", [plain(n=60)])
    places = {"run": run, "out": tmp_path / "out"}
    code, _, error = cli("detect", *(word.format(**places) for word in words))
    assert code == 2
    assert sentence in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()
