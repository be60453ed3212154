"""More questions than probes learn from: their readings are kept, and their states are not."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kit.evidence_fixture import without_pictures
from kit.rivers import anchorscope_in, contents, finish, half_right, main_in, rivers, stored_states
from safetensors import safe_open

from anchorscope.datasets.packed import PackedQuestions, split_sets
from anchorscope.records import Question, QuestionSet
from anchorscope.run_folder.view import RunView

LEARNT, ALL = 60, 96
RUN = ("run", "--model", "model", "--data", "half.jsonl", "--max-tokens", "4", "--shard", "16",
       "--resamples", "100", "--fold-seeds", "1", "--folds", "3", "--dtype", "float32",
       "--device", "cpu", "--prompt", "text", "--evidence", "none", "--threads", "1")  # fmt: skip
MANY = (*RUN, "--limit", "all", "--learn-from", str(LEARNT))
PASSES = ("clean", "knockout", "neutral", "content", "question")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The model, 96 questions, and the run that learns from 60 of them: `many`."""
    place = rivers(tmp_path_factory.mktemp("many"))
    half_right(place, ALL, short=True)
    with without_pictures():
        main_in(place, *MANY, "--out", "many")
    return place


@pytest.fixture(scope="module")
def kept(place) -> Path:
    """The same run with all states."""
    with without_pictures():
        main_in(place, *MANY, "--keep-states", "all", "--out", "kept")
    return place / "kept"


def probe_files(run: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((run / "probes/half").iterdir())}


def remaining(run: Path) -> dict[str, bytes]:
    """The bytes of every file of the remaining questions, but for states."""
    files = [p for p in (run / "remaining").rglob("*") if p.is_file()]
    names = {p.relative_to(run).as_posix(): p.read_bytes() for p in files}
    return {name: data for name, data in names.items() if "/states/" not in name}


def test_probes_and_tables_are_those_of_a_run_of_the_learnt_questions(place, no_pictures):
    main_in(place, *RUN, "--limit", str(LEARNT), "--out", "limited")
    assert contents(place / "limited") == contents(place / "many")
    assert probe_files(place / "limited") == probe_files(place / "many")


def test_every_other_question_has_its_answer_and_readings_and_no_states(place):
    run = RunView.open(place / "many")
    assert sorted(remaining(run.path)) == [
        f"remaining/{kind}/{number:05d}.parquet"
        for kind in ("answers", "readings")
        for number in range(-(-(ALL - LEARNT) // 16))
    ]
    asked = {f"half:all:{json.loads(line)['id']}" for line in (place / "half.jsonl").open()}
    answered = pd.read_parquet(run.path / "remaining/answers")
    assert set(run.samples["id"]) | set(answered["id"]) == asked
    assert len(run.samples) == LEARNT and len(answered) == ALL - LEARNT
    rows = run.readings(layer=2, probe="b")
    usable = answered[answered["exact_answer"].map(len) > 0]
    assert rows["id"].tolist() == usable["id"].tolist() and set(rows["layer"]) == {2}
    verdicts = dict(zip(answered["id"], answered["verdict"], strict=True))
    z = {"wrong": 1, "right": 0, "abstain": -1}
    flipped = (rows["clean"] > 0) != (rows["knockout"] > 0)
    assert len(flipped) == len(usable)
    assert RunView.open(place / "first", collected_ok=True).readings(layer=2).empty
    assert rows["z"].tolist() == [z[verdicts[id]] for id in rows["id"]]


def test_readings_are_states_times_the_probes_that_held_the_entity_out(kept):
    """By safetensors, hashlib and a plain loop; states are there since all were kept."""
    with safe_open(kept / "probes/half/probes.safetensors", "numpy") as file:
        weights, intercept = file.get_tensor("weights"), file.get_tensor("intercept")
    probes = json.loads((kept / "probes/half/probes.json").read_text())["probes"]
    states = {name: stored_states(kept / "remaining", name) for name in PASSES}
    table = pd.read_parquet(kept / "remaining/readings")
    assert set(zip(table["id"], table["layer"], table["probe"], strict=True)) == {
        (id, layer, probe) for id in states["clean"] for layer in (1, 2, 3, 4) for probe in probes
    }
    for row in table.to_dict("records"):
        digest = hashlib.blake2b(f"0:{row['entity']}".encode(), digest_size=8).digest()
        assert row["fold"] == int.from_bytes(digest, "big") % 3
        at = probes.index(row["probe"]), row["fold"], row["layer"] - 1
        for name in PASSES:
            if row["id"] not in states[name]:
                assert np.isnan(row[name])
                continue
            state = states[name][row["id"]][row["layer"] - 1].astype(float)
            expected = state @ weights[at].astype(float) + intercept[at]
            assert row[name] == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_kept_states_change_nothing_else(place, kept):
    assert remaining(kept) == remaining(place / "many")
    assert contents(kept) == contents(place / "many")
    assert not (place / "many/remaining/states").exists()


def test_an_entity_that_probes_learnt_from_is_read_by_the_fold_that_held_it_out(tmp_path):
    """Also where its fold is not that of its hash, since few entities had to fill a fold."""
    from anchorscope.probes.folds import entity_folds, folds_like

    entities = ["Rhine", "Elbe", "Oder"]
    fold = entity_folds(entities, folds=3, seed=1)
    known = dict(zip(entities, map(int, fold), strict=True))
    assert sorted(fold) == [0, 1, 2]
    assert folds_like(["Oder", "Rhine"], known, folds=3, seed=1).tolist() == [fold[2], fold[0]]


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.slow
def test_resume_after_a_kill_among_the_remaining_questions_is_byte_equal(place):
    process = anchorscope_in(place, *MANY, "--out", "killed")
    first = place / "killed/markers/remaining/readings/00000.parquet.json"
    while not first.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (place / "killed/remaining/answers/00000.parquet").unlink()
    with without_pictures():
        main_in(place, *MANY, "--out", "killed")
    assert remaining(place / "killed") == remaining(place / "many")
    assert contents(place / "killed") == contents(place / "many")


@pytest.mark.slow
def test_workers_write_the_same_bytes(place):
    finish(anchorscope_in(place, *MANY, "--workers", "2", "--out", "workers"))
    assert remaining(place / "workers") == remaining(place / "many")
    assert contents(place / "workers") == contents(place / "many")


@pytest.mark.slow
def test_four_nodes_of_a_ray_cluster_write_the_same_bytes(place):
    """One command; a node has one worker, which gets questions and no states."""
    from ray.cluster_utils import Cluster

    quiet = {"include_dashboard": False, "num_cpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args=quiet)
    try:
        for _ in range(3):
            cluster.add_node(num_cpus=1)
        out = finish(anchorscope_in(place, *MANY, "--ray", cluster.address, "--out", "ray"))
    finally:
        cluster.shutdown()
    assert "worker 4 of 4" in out
    assert remaining(place / "ray") == remaining(place / "many")
    assert contents(place / "ray") == contents(place / "many")


def test_no_states_are_left_where_none_are_kept(place, cli, monkeypatch, no_pictures):
    """What needs them says so, and the run's command with all of them brings the same bytes."""
    monkeypatch.chdir(place)
    run = Path(shutil.copytree("many", "bare"))
    before = contents(run)
    code, _, error = cli(*MANY, "--keep-states", "none", "--out", run)
    assert code == 0, error
    assert [p.parent.name for p in run.rglob("*.safetensors")] == ["half"]  # its probes
    code, out, _ = cli("verify", run, "--deep")
    assert code == 0 and "states: removed after the run" in out
    assert "--keep-states none removes them): nothing is computed again" in out
    for words in (("export", run, "--to", "numpy", "--out", "exported"), ("power", run),
                  ("detect", "train", run, "--out", "detector")):  # fmt: skip
        code, _, error = cli(*words)
        assert code == 2 and "holds no states: none were collected, or they were" in error, error
    times = {p: p.stat().st_mtime_ns for p in (run / "tables").iterdir()}
    assert cli(*MANY, "--out", run)[0] == 0  # finished: the states are not read again
    assert times == {p: p.stat().st_mtime_ns for p in (run / "tables").iterdir()}
    assert cli(*MANY, "--keep-states", "all", "--out", run)[0] == 0
    assert contents(run) == before and (run / "remaining/states/clean/00000.safetensors").exists()
    assert cli("verify", run)[0] == 0


def test_another_number_of_learnt_questions_is_another_run(place, cli, monkeypatch):
    monkeypatch.chdir(place)
    code, _, error = cli(*MANY[:-1], "64", "--out", "many")
    assert code == 2 and "learn_from: 60 there, 64 asked" in error


def questions(count: int) -> tuple[Question, ...]:
    return tuple(
        Question(
            id=f"set:all:{n}", dataset="set", text=f"Is {n} \U0001f600 prime?",
            answers=("yes", str(n)), subjects=(str(n),) * (n % 3), relation=None if n % 2 else "is",
            popularity=None if n % 5 else n / 3, entity=str(n // 2),
        )
        for n in range(count)
    )  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 700])
def test_packed_questions_are_the_questions(count):
    whole = questions(count)
    packed = PackedQuestions(whole)
    assert len(packed) == count and tuple(packed) == whole
    for at in (slice(None), slice(200, 300), slice(256, 512), slice(690, None), slice(5, 5),
               slice(None, None, -7)):  # fmt: skip
        assert packed[at] == whole[at]
    for at in {0, 255, 256, count - 1, -1} & set(range(-count, count)):
        assert packed[at] == whole[at]
    with pytest.raises(IndexError):
        packed[count]


def test_a_set_is_split_only_where_it_is_larger():
    small, large = (
        QuestionSet(name=str(n), title="", questions=questions(n), shots=(), dropped={"bad": 1})
        for n in (10, 11)
    )
    learnt, rest = split_sets([small, large], 10)
    assert learnt[0] == small and tuple(learnt[1]) == large.questions[:10]
    assert [(each.name, tuple(each), each.dropped) for each in rest] == [
        ("11", large.questions[10:], {})
    ]
