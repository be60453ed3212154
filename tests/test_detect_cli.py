"""`anchorscope detect eval`, and what bad input gets."""

from __future__ import annotations

import pandas as pd
import pytest
from kit.detect_worlds import plain, sisters, write_run

from anchorscope.detect.kinds import METHODS


def test_eval_from_the_command_line(cli, tmp_path):
    run = write_run(tmp_path / "run", sisters()[:2])
    words = ["--methods", "min-log-prob,tfidf-question,probe,auto", "--transfer"]
    out = tmp_path / "out"
    more = ["--folds", "3", "--resamples", "200", "--out", out]
    code, said, _ = cli("detect", "eval", run, *words, *more)
    assert code == 0
    assert "TF-IDF question" in said
    names = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    tables = {f"tables/{n}" for n in ("detectors.csv", "detectors.md", "detectors.tex",
                                      "transfer.csv", "detector_scores.parquet")}  # fmt: skip
    figures = {f"figures/detect_{n}.{end}" for n in ("roc", "reliability", "risk", "transfer")
               for end in ("png", "svg", "pdf")}  # fmt: skip
    assert names == tables | figures
    moved = pd.read_csv(out / "tables/transfer.csv")
    assert sorted(moved["kind"].unique()) == ["transfer", "within"]
    assert not (run / "tables").exists()


def test_train_says_what_the_detector_is_worth(cli, tmp_path):
    run = write_run(tmp_path / "run", [plain(n=300, strength=2.0)])
    out = tmp_path / "detector"
    words = ["--method", "probe", "--folds", "3", "--risk", "0.2", "--out", out]
    code, said, _ = cli("detect", "train", run, *words)
    assert code == 0
    said = " ".join(said.split())
    assert "on unseen entities, from" in said and "of made-up" in said
    assert "cannot say between" in said
    assert "Promised: at most 20% of the answers let through" in said
    few = write_run(tmp_path / "few", [plain(n=60)])
    code, said, _ = cli("detect", "train", few, "--method", "probe", "--folds", "3", "--out", out)
    assert code == 0
    assert "Trained on few answers: 60, 30 of them wrong." in " ".join(said.split())


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
    (
        ["eval", "{run}", "--resamples", "500"],
        f"--resamples is 500. Accepted: {40 * len(METHODS)} or more",
    ),
    (["eval", "{run}", "--methods", "probe", "--resamples", "99"], "Accepted: 100 or more for 1"),
    (["eval", "{run}", "--limit", "8"], "Invalid value for '--limit'"),
    (["collect", "--out", "{out}", "--samples", "1"], "--samples is 1. Accepted: 2 or more"),
    (["push", "{out}", "org/name"], "No detector could be read from"),
]


@pytest.mark.parametrize(("words", "said"), BAD, ids=lambda x: x[0] if isinstance(x, list) else "")
def test_a_mistake_is_one_sentence_and_writes_nothing(cli, tmp_path, words, said):
    run = write_run(tmp_path / "run", [plain(n=60)])
    places = {"run": run, "out": tmp_path / "out"}
    code, _, error = cli("detect", *(word.format(**places) for word in words))
    assert code == 2
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_auto_alone_or_beside_others_is_the_same_choice_of_all(cli, tmp_path):
    run = write_run(tmp_path / "run", [plain(n=60, layers=2)])
    tables = {}
    for names in ("auto", "length,auto", "length,probe,auto"):
        out = tmp_path / names
        words = ["--methods", names, "--folds", "3", "--resamples", "3000", "--out", out]
        code, _, error = cli("detect", "eval", run, *words)
        assert code == 0, error
        tables[names] = pd.read_csv(out / "tables/detectors.csv")
        assert list(tables[names]["detector"].unique()) == names.split(",")
    chosen = [table[table["detector"] == "auto"].reset_index() for table in tables.values()]
    for table in chosen[1:]:
        pd.testing.assert_series_equal(table["auroc"], chosen[0]["auroc"])
        pd.testing.assert_series_equal(table["chosen"], chosen[0]["chosen"])
    assert not set(chosen[0]["chosen"].str.split("; ").explode()) <= {"length", "probe"}
