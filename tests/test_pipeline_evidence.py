"""Every piece of evidence in one run, on a tiny random model that is right by construction."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from kit.evidence_fixture import without_pictures
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope import Config, Question, UserError, load_model, load_questions, run
from anchorscope.answers.generate import Answerer
from anchorscope.answers.judge import judge
from anchorscope.config import EVIDENCE
from anchorscope.engine.decode import Prefix
from anchorscope.engine.lease import Lease
from anchorscope.models.prompts import make_prompt
from anchorscope.pipeline.collect import collect
from anchorscope.run_folder.states import StateBank

HOW = Config(shots=0, prompt="text", max_tokens=4, resamples=100, folds=3, fold_seeds=1, shard=32)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def model():
    return load_model(tiny_lm("llama", seed=3), tokenizer=tiny_tokenizer())


@pytest.fixture(scope="module")
def questions(model):
    """Questions whose accepted answer is the model's own, for every second one of them."""
    names = [a + b + a for a in LETTERS for b in LETTERS[::4]]
    texts = [f"what is {name} for?" for name in names]
    prompts = [make_prompt(model, text, shots=(), style="text").ids for text in texts]
    with Lease(model) as lease:
        answerer = Answerer(model, max_tokens=HOW.max_tokens)
        said = answerer.answer(lease, Prefix((), None), texts, prompts).answers
    made = []
    for name, text, answer in zip(names, texts, said, strict=True):
        if judge(answer.text, [answer.text], question=text) != "right":
            continue  # nothing that a judge could accept
        mine = {
            "subjects": (name,),
            "entity": name,
            "relation": "use",
            "popularity": 10.0 + len(made),
        }
        accepted = (answer.text,) if len(made) % 2 else ("something else",)
        made.append(
            Question(id=f"own:all:{name}", dataset="own", text=text, answers=accepted, **mine)
        )
    assert len(made) >= 64
    return load_questions(made[:64])


@pytest.fixture(scope="module")
def done(model, questions, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "all"
    with without_pictures():
        run(model, questions, out=out, config=replace(HOW, evidence=()))
    before = (out / "states" / "clean" / "00000.safetensors").stat().st_mtime_ns
    view = run(model, questions, out=out, config=replace(HOW, evidence=EVIDENCE))
    assert (out / "states" / "clean" / "00000.safetensors").stat().st_mtime_ns == before
    return view


def test_every_piece_leaves_its_table_figure_and_part_of_the_report(done):
    tables = {"patching", "patching_gap", "answer_only", "question_probe", "saliency", "boundary",
              "boundary_model", "awareness", "awareness_gap", "heads", "windows"}  # fmt: skip
    assert set(done.evidence) == tables
    assert all(len(table) for table in done.evidence.values())
    for name in (
        "patching",
        "answer_only",
        "saliency",
        "boundary",
        "awareness",
        "heads",
        "windows",
    ):
        assert (done.path / "figures" / f"{name}.png").stat().st_size > 5_000
    report = (done.path / "report.html").read_text(encoding="utf-8")
    assert "The other evidence" in report and report.count("<details") >= 7
    claims = set(pd.read_csv(done.path / "tables" / "claims.csv")["claim"])
    assert {"patching-flips-q", "answer-only-moves-q", "state-knows-pathway"} <= claims
    states = {path.name for path in (done.path / "states").iterdir()}
    assert {"patch-matched", "window-5", "single", "question-only", "reweight+1.0"} <= states
    assert (done.path / "evidence" / "ptrue" / "00000.parquet").is_file()


def test_a_sample_patched_with_itself_keeps_its_verdict(done):
    own = done.evidence["patching"].query("intervention == 'patch-self' and pathway == 'all'")
    assert len(own) and (own["flip_rate"].dropna() == 0).all()


def test_run_json_says_which_evidence_is_there_and_less_asks_for_no_work(done, model, questions):
    info = json.loads((done.path / "run.json").read_text())
    assert set(info["evidence"]) == set(EVIDENCE)
    report = (done.path / "report.html").stat().st_mtime_ns
    run(model, questions, out=done.path, config=HOW)
    assert (done.path / "report.html").stat().st_mtime_ns == report


def test_detectors_can_be_had_without_the_analysis(model, questions, done, tmp_path, cli):
    """The same states as in a whole run; and the folder is for detectors alone."""
    out = collect(model, questions, out=tmp_path / "states", config=HOW)
    ids = list(done.samples["id"])
    for name in ("clean", "knockout", "reweight+1.0", "reweight-2.0"):
        mine, whole = (StateBank(f, ids).all_layers(name) for f in (out, done.path))
        # Other rows share the batches, so the last digits may differ.
        np.testing.assert_allclose(mine, whole, atol=2e-2)
        assert np.isfinite(mine).any()
    assert json.loads((out / "run.json").read_text())["command"].startswith(
        "anchorscope detect collect --"
    )
    written = (out / "samples.parquet").stat().st_mtime_ns
    assert collect(model, questions, out=out, config=HOW) == out
    assert (out / "samples.parquet").stat().st_mtime_ns == written
    code, said, _ = cli("detect", "eval", out, "--methods", "probe,p-true,pr", "--folds", 3)
    assert code == 0 and "PR" in said
    with pytest.raises(UserError, match="another --out"):
        run(model, questions, out=out, config=HOW)
    code, _, error = cli("figure", out)
    assert code == 2 and "was collected for detectors" in error


def test_every_table_of_all_evidence_is_computed_again_by_verify(done, cli):
    """No model is loaded for it: each table comes out of the stored answers and states."""
    code, said, _ = cli("verify", done.path, "--deep")
    assert code == 0, said
    for table in (done.path / "tables").iterdir():
        assert f"tables/{table.name}: computed again, the same bytes" in said
