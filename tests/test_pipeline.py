"""A whole run through the command line: every file checked by other code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kit.forged_runs import vouch_for
from kit.rivers import stored_states
from kit.tiny import tiny_tokenizer
from safetensors import safe_open

from anchorscope.answers import generate


@pytest.mark.parametrize(
    ("chat", "text", "style", "tried"),
    [
        ((1.0, 1.0), None, "chat", ["chat"]),  # nothing can be better
        ((1.0, 0.5), (0.9, 1.0), "text", ["chat", "text"]),  # the worst set counts
        ((0.875, 1.0), (0.9, 1.0), "chat", ["chat", "text"]),  # text must be better by 5 points
    ],
)
def test_prompt_style_is_the_one_with_more_bare_answers(chat, text, style, tried, monkeypatch):
    shares, measured = {"chat": chat, "text": text}, []

    def share(lease, questions: int, style: str, *_: int) -> float:
        measured.append(style)
        return shares[style][questions]

    monkeypatch.setattr(generate, "has_chat", lambda model: True)
    monkeypatch.setattr(generate, "_bare_share", share)
    lease: Any = SimpleNamespace(model=None)
    sets: Any = (0, 1)
    settled = generate.settle_style(lease, sets, wanted="auto", shots=4, max_tokens=16)
    assert settled.name == style
    assert list(dict.fromkeys(measured)) == tried
    assert (" as text" in settled.why) == ("text" in tried)


@pytest.fixture
def done(finished_place) -> Path:
    return finished_place / "run"


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_folder_holds_what_it_promises(done):
    names = {str(p.relative_to(done)) for p in done.rglob("*") if p.is_file()}
    states = {f"states/{i}/{n:05d}.safetensors" for n in range(3)
              for i in ("clean", "knockout", "neutral", "question", "answer-only")}  # fmt: skip
    figures = {f"figures/delta_p.{kind}" for kind in ("png", "svg", "pdf")}
    tables = {f"tables/{name}.csv" for name in ("layers", "probes", "controls", "spans")}
    assert {"run.json", "samples.parquet", "report.html"} | states | figures | tables <= names
    assert not [name for name in names if "partial" in name or name.endswith((".pkl", ".pt"))]
    info = json.loads((done / "run.json").read_text())
    assert info["finished"] is True
    assert info["stages"]["answers and states"]["tokens"] > 64 * 10


def test_layers_csv_recomputed_from_states_and_probes(done):
    """Every number of tables/layers.csv by a loop that knows nothing of our code."""
    samples = pd.read_parquet(done / "samples.parquet").dropna(subset=["fold"])
    clean, knocked = stored_states(done, "clean"), stored_states(done, "knockout")
    with safe_open(next((done / "probes/half").glob("*.safetensors")), "numpy") as file:
        weights, intercept = file.get_tensor("weights"), file.get_tensor("intercept")
    names = json.loads(next((done / "probes/half").glob("*.json")).read_text())["probes"]
    table = pd.read_csv(done / "tables/layers.csv")
    for row in table.itertuples():
        roles = ("paper", "paper") if row.mode == "paper" else ("a", "b")
        group, effect = (names.index(role) for role in roles)
        points, logits = [], []
        for id, fold in zip(samples["id"], samples["fold"], strict=True):
            x, y, k = clean[id][row.layer - 1], knocked[id][row.layer - 1], row.layer - 1

            def logit(probe, state, fold=fold, k=k):
                return (
                    state.astype(float) @ weights[probe, fold, k].astype(float)
                    + intercept[probe, fold, k]
                )

            flipped = (logit(group, x) > 0) != (logit(group, y) > 0)
            if flipped == (row.pathway == "Q"):
                before, after = logit(effect, x), logit(effect, y)
                sign = 1 if before > 0 else -1
                points.append(100 * (sigmoid(sign * after) - sigmoid(sign * before)))
                logits.append(sign * (after - before))
        assert row.n == len(points)
        if points:
            assert row.delta_p == pytest.approx(np.mean(points), abs=1e-6)
            assert row.delta_logit == pytest.approx(np.mean(logits), abs=1e-8)


def test_samples_say_which_tokens_were_meant_and_no_entity_is_in_two_folds(done):
    samples = pd.read_parquet(done / "samples.parquet")
    assert len(samples) == 64
    assert samples["id"].is_unique
    decode, whole = tiny_tokenizer().decode, 0
    for row in samples[samples["fold"].notna()].itertuples():
        ids = [*row.prompt_ids, *row.token_ids]
        assert row.subjects[0] in decode([ids[i] for i in row.exact_question])
        answer = decode([ids[i] for i in row.exact_answer])
        entity = row.answer[int(row.answer_start) : int(row.answer_stop)]
        # A letter may begin in a token before the entity's first one.
        assert entity in answer or (len(entity) == 1 and answer == "\ufffd")
        whole += entity in answer
        assert min(row.exact_answer) >= len(row.prompt_ids) > max(row.question_tokens)
    assert whole > 50
    folds = samples.dropna(subset=["fold"]).groupby("entity")["fold"]
    assert (folds.nunique() == 1).all()


def test_a_number_that_was_changed_with_its_checksum_is_found_by_deep(done, tmp_path, cli):
    """Whoever changes a table can make its checksum right again; what it follows from says no."""
    run = Path(shutil.copytree(done, tmp_path / "run"))
    code, out, _ = cli("verify", run, "--deep")
    assert code == 0 and "tables/strict.csv: computed again, the same bytes" in out, out
    table = pd.read_csv(run / "tables/strict.csv", dtype=str)
    row = table["strict_gap"].dropna().index[0]
    table.loc[row, "strict_gap"] = str(float(table.loc[row, "strict_gap"]) - 0.5)
    table.to_csv(run / "tables/strict.csv", index=False)
    vouch_for(run, "tables/strict.csv")
    code, out, _ = cli("verify", run)
    assert code == 0, out
    code, out, _ = cli("verify", run, "--deep")
    (wrong,) = [line for line in out.splitlines() if line.startswith("WRONG")]
    assert code == 1 and "tables/strict.csv: computed again from answers and states" in wrong
