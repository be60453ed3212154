"""The whole path on real parts: bundled model, real questions, every file checked by other code."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kit.rivers import stored_states
from safetensors import safe_open

from anchorscope.pipeline import prepare

OPTIONS = ["--data", "atlas", "--limit", "66", "--max-tokens", "8", "--resamples", "100"]
OPTIONS += ["--shard", "22", "--prompt", "text", "--dtype", "float32", "--device", "cpu"]
TABLES = ["layers.csv", "probes.csv", "controls.csv", "spans.csv"]


def anchorscope(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from anchorscope.cli import main; main()", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=os.environ.copy(), **pipes)


def finish(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=540)
    assert process.returncode == 0, error
    return out


@pytest.mark.parametrize(
    ("chat", "text", "style", "tried"),
    [
        ((1.0, 1.0), None, "chat", ["chat"]),  # nothing can be better
        ((1.0, 0.5), (0.9, 1.0), "text", ["chat", "text"]),  # the worst set counts
        ((0.875, 1.0), (0.9, 1.0), "chat", ["chat", "text"]),  # text must be better by 5 points
    ],
)
def test_the_prompt_style_is_the_one_with_more_bare_answers(chat, text, style, tried, monkeypatch):
    shares, asked = {"chat": chat, "text": text}, []

    def share(lease, questions: int, style: str, *how: int) -> float:
        asked.append(style)
        return shares[style][questions]

    monkeypatch.setattr(prepare, "has_chat", lambda model: True)
    monkeypatch.setattr(prepare, "_bare_share", share)
    lease: Any = SimpleNamespace(model=None)
    sets: Any = (0, 1)
    settled = prepare.settle_style(lease, sets, wanted="auto", shots=4, max_tokens=16)
    assert settled.name == style
    assert list(dict.fromkeys(asked)) == tried
    assert (" as text" in settled.why) == ("text" in tried)


@pytest.fixture(scope="session")
def done(bundled, tmp_path_factory) -> Path:
    """An undisturbed run; `bundled` has converted the weights by then."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    said = finish(anchorscope("run", *OPTIONS, "--out", out))
    finding, report, command = said.strip().splitlines()
    assert finding.startswith("Atlas: too-few: ") and finding.endswith("is made.")
    assert report == f"Report: {out / 'report.html'}"
    assert command.startswith("Next: ask more questions, with a larger --limit")
    return out


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_the_folder_holds_what_it_promises(done):
    names = {str(p.relative_to(done)) for p in done.rglob("*") if p.is_file()}
    states = {f"states/{i}/{n:05d}.safetensors" for n in range(3)
              for i in ("clean", "knockout", "neutral", "question", "answer-only")}  # fmt: skip
    figures = {f"figures/delta_p.{kind}" for kind in ("png", "svg", "pdf")}
    tables = {f"tables/{name}" for name in TABLES}
    assert {"run.json", "samples.parquet", "report.html"} | states | figures | tables <= names
    assert not [name for name in names if "partial" in name or name.endswith((".pkl", ".pt"))]
    info = json.loads((done / "run.json").read_text())
    assert info["finished"] is True
    assert info["stages"]["answers and states"]["tokens"] > 66 * 10


def test_layers_csv_recomputed_from_states_and_probes(done):
    """Every number of tables/layers.csv by a loop that knows nothing of our code."""
    samples = pd.read_parquet(done / "samples.parquet").dropna(subset=["fold"])
    clean, knocked = stored_states(done, "clean"), stored_states(done, "knockout")
    with safe_open(next((done / "probes/atlas").glob("*.safetensors")), "numpy") as file:
        weights, intercept = file.get_tensor("weights"), file.get_tensor("intercept")
    names = json.loads(next((done / "probes/atlas").glob("*.json")).read_text())["probes"]
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


def test_no_probe_is_read_where_its_entity_was_seen(done):
    samples = pd.read_parquet(done / "samples.parquet").dropna(subset=["fold"])
    assert (samples.groupby("entity")["fold"].nunique() == 1).all()


def test_samples_say_which_tokens_were_meant(done, bundled):
    samples = pd.read_parquet(done / "samples.parquet")
    assert len(samples) == 66
    assert samples["id"].is_unique
    decode = bundled.tokenizer.decode
    for row in samples.itertuples():
        ids = [*row.prompt_ids, *row.token_ids]
        subject = decode([ids[i] for i in row.exact_question])
        assert row.subjects[0] in subject
        answer = decode([ids[i] for i in row.exact_answer])
        assert row.answer[int(row.answer_start) : int(row.answer_stop)] in answer
        assert min(row.exact_answer) >= len(row.prompt_ids) > max(row.question_tokens)


def killed_when(out: Path, there: str) -> None:
    """Runs the command and kills it for good as soon as a file is there."""
    process = anchorscope("run", *OPTIONS, "--out", out)
    while not (out / there).exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    time.sleep(0.5)  # into the work that follows
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
def test_a_killed_run_ends_like_an_undisturbed_one(done, tmp_path):
    """Killed in the middle of reading, and a file torn on top of it."""
    out = tmp_path / "killed"
    killed_when(out, "answers/00001.parquet")
    assert not (out / "samples.parquet").exists()
    torn = out / "states/neutral/00000.safetensors"
    if torn.exists():
        torn.write_bytes(torn.read_bytes()[:-100])
    finish(anchorscope("run", *OPTIONS, "--out", out))
    for name in TABLES:
        assert (out / "tables" / name).read_bytes() == (done / "tables" / name).read_bytes()
    for name in ("samples.parquet", "tables/pathways.parquet"):
        pd.testing.assert_frame_equal(pd.read_parquet(out / name), pd.read_parquet(done / name))


@pytest.mark.slow
def test_a_number_that_was_changed_with_its_checksum_is_found_by_deep(done, tmp_path, cli):
    """Whoever changes a table can make its checksum right again; what it follows from says no."""
    run = Path(shutil.copytree(done, tmp_path / "run"))
    code, said, _ = cli("verify", run, "--deep")
    assert code == 0 and "tables/strict.csv: computed again, the same bytes" in said, said
    table = pd.read_csv(run / "tables/strict.csv", dtype=str)
    row = table["strict_gap"].dropna().index[0]
    table.loc[row, "strict_gap"] = str(float(table.loc[row, "strict_gap"]) - 0.5)
    table.to_csv(run / "tables/strict.csv", index=False)
    vouch_for(run, "tables/strict.csv")
    code, said, _ = cli("verify", run)
    assert code == 0, said
    code, said, _ = cli("verify", run, "--deep")
    (wrong,) = [line for line in said.splitlines() if line.startswith("WRONG")]
    assert code == 1 and "tables/strict.csv: computed again from answers and states" in wrong


def vouch_for(run: Path, name: str) -> None:
    """Makes its marker and run.json say that the file is as it was written."""
    data = (run / name).read_bytes()
    entry = {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (run / "markers" / f"{name}.json").write_text(json.dumps(entry))
    info = json.loads((run / "run.json").read_text())
    info["files"][name] = f"{entry['bytes']} {entry['sha256']}"
    del info["checksum"]
    (run / "run.json").write_text(json.dumps(info))
