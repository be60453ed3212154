"""A run folder of many writers: one owner, whole files through any fault, and states by layer."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, settings
from kit.folder_machine import IDENTITY, FolderMachine
from kit.power import Died, Disk

import anchorscope
from anchorscope.errors import UserError
from anchorscope.records import Answer, Question, Sample, Span
from anchorscope.run_folder.samples import from_frame, to_frame
from anchorscope.run_folder.states import StateBank, save_states, shard_name
from anchorscope.run_folder.store import Store

OWNER = f"""
import sys, time
from anchorscope.run_folder.store import Store
with Store.open(sys.argv[1], {IDENTITY}).owned():
    print("mine", flush=True)
    time.sleep(60)
"""
WRITER = f"""
import sys
from anchorscope.run_folder.store import Store
store = Store.open(sys.argv[1], {IDENTITY})
for n in range(20):
    store.write("same.bin", lambda file: file.write(b"x" * 300_000))
    store.write(f"own/{{sys.argv[2]}}-{{n}}", lambda file: file.write(sys.argv[2].encode() * 1000))
"""
TestFolderMachine = FolderMachine.TestCase
TestFolderMachine.settings = settings(
    max_examples=int(os.environ.get("MACHINE_EXAMPLES", "6")),
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def python(code: str, *words: object) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(anchorscope.__file__).parents[1])}
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)


@pytest.mark.parametrize("call", range(1, 24))
def test_what_is_written_after_a_kill_outlives_a_power_cut(tmp_path: Path, call: int) -> None:
    """One is killed before some call, another goes on, and the power goes."""
    disk, run = Disk(tmp_path), tmp_path / "run"
    with suppress(Died), disk.dying(call):
        first = Store.open(run, IDENTITY)
        first.write("states/clean/00000.safetensors", lambda file: file.write(b"first"))
    with disk.dying():
        second = Store.open(run, IDENTITY)
        second.write("states/clean/00001.safetensors", lambda file: file.write(b"kept"))
    disk.lose_power(lambda: False)
    assert Store.open(run, IDENTITY).has("states/clean/00001.safetensors")


def test_a_marker_says_what_is_in_the_file(tmp_path):
    store = Store.open(tmp_path, IDENTITY)
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "ü"]})
    store.write("t.parquet", frame.to_parquet)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), frame)
    data = (tmp_path / "t.parquet").read_bytes()
    marker = json.loads((tmp_path / "markers/t.parquet.json").read_text())
    sha256 = hashlib.sha256(data).hexdigest()
    assert marker == {"name": "t.parquet", "bytes": len(data), "sha256": sha256}


def test_many_writers_of_one_folder_leave_every_file_whole(tmp_path):
    out = tmp_path / "run"
    writers = [python(WRITER, out, name) for name in "abc"]
    assert [process.wait(120) for process in writers] == [0] * 3
    store = Store(out)
    assert all(store.has(f"own/{name}-{n}") for name in "abc" for n in range(20))
    assert store.has("same.bin")
    assert not [path for path in out.rglob("*") if "partial" in path.name]
    store.save_info({"finished": True})
    assert len(json.loads((out / "run.json").read_text())["files"]) == 61


def test_a_second_owner_is_refused_until_the_first_is_gone(tmp_path):
    """Whether it lives is known from the lock, whatever owner.json says, and by no clock."""
    first = python(OWNER, tmp_path / "run")
    assert first.stdout is not None and first.stdout.readline() == "mine\n"
    store, file = Store.open(tmp_path / "run", IDENTITY), tmp_path / "run/owner.json"
    elsewhere = json.dumps({"host": "elsewhere", "process": 2**40, "since": "then"})
    for text, named in (
        (file.read_text(), f"is being written by process {first.pid} on"),
        (elsewhere, "on elsewhere, since then"),
        ("{", "process unknown"),
    ):
        file.write_text(text)
        os.utime(file, (1, 1))
        with pytest.raises(UserError, match=named), store.owned():
            raise AssertionError
    first.send_signal(signal.SIGKILL)
    first.wait()
    with store.owned():
        assert json.loads(file.read_text())["process"] == os.getpid()
        store.save_info({"mine": True})
    assert not file.exists()


def test_a_file_whose_bytes_changed_is_not_there(tmp_path):
    """Its size is as before: its checksum alone shows it, to the writer and to the next process."""
    store = Store.open(tmp_path, IDENTITY)
    store.write("a", lambda file: file.write(b"12345678"))
    assert store.has("a")
    (tmp_path / "a").write_bytes(b"12345679")
    os.utime(tmp_path / "a", (1, 1))
    assert not store.has("a") and not Store.open(tmp_path, IDENTITY).has("a")
    (tmp_path / "a").write_bytes(b"12345678")
    assert store.has("a") and Store.open(tmp_path, IDENTITY).has("a")
    (tmp_path / "a").unlink()
    assert not store.has("a") and not Store.open(tmp_path, IDENTITY).has("a")


KILLED = """
import os, pathlib, sys
from anchorscope.run_folder.disk import save_atomic
save_atomic(pathlib.Path(sys.argv[1]), lambda file: os.kill(os.getpid(), 9))
"""


def test_an_owner_removes_what_a_process_left_that_was_killed_before_or_meanwhile(tmp_path):
    store = Store.open(tmp_path, IDENTITY)

    def left_by_a_killed_process() -> int:
        done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "a")], check=False)
        assert done.returncode == -9
        return len(list(tmp_path.glob(".a.*.partial")))

    assert left_by_a_killed_process() == 1
    with store.owned():
        assert not list(tmp_path.glob(".a.*.partial"))
        assert left_by_a_killed_process() == 1
    assert not list(tmp_path.glob(".a.*.partial"))


def test_an_owner_removes_what_another_machine_left_an_hour_ago(tmp_path):
    store, left, new = Store.open(tmp_path, IDENTITY), ".a.0.partial", ".b.1.partial"
    for name in (left, new):
        (tmp_path / name).write_bytes(b"x")
    os.utime(tmp_path / left, (1, 1))
    with store.owned():
        assert not (tmp_path / left).exists() and (tmp_path / new).exists()


def test_another_format_is_refused(tmp_path):
    Store.open(tmp_path, IDENTITY).save_info({"format": 4})
    with pytest.raises(UserError, match="has the format 4, and this anchorscope reads 3"):
        Store.open(tmp_path, IDENTITY)


def test_a_row_of_a_sample_has_every_field_of_its_question_and_its_answer():
    question = Question(
        id="d:1", dataset="d", text="Who?", answers=("A", "b"), subjects=("x",), popularity=3.0
    )
    answer = Answer(
        id="d:1", text="A.", token_ids=(1, 2), log_probs=(-0.5, -1.0), first_entropy=0.3,
        finished=True, entropies=(0.3, 0.1),
    )  # fmt: skip
    sample = Sample(
        question=question, answer=answer, verdict="right", finder="rules", spans=(Span(0, 3),),
        answer_span=None, prompt_ids=(5, 6), question_tokens=(0, 1), exact_question=(1,),
        exact_answer=(2,),
    )  # fmt: skip
    frame = to_frame([sample, sample])
    (row, _) = frame.to_dict("records")
    fields = {**asdict(question), **asdict(answer)}
    del fields["text"]
    assert {name: row[name] for name in fields} == fields
    assert (row["question"], row["answer"]) == ("Who?", "A.")
    assert from_frame(frame) == [sample, sample]
    assert (question.text, answer.text) == ("Who?", "A.")  # the values stay as they were


# --- States ---


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A folder of three shards, the second one of another dataset; and each question's states."""
    store = Store.open(tmp_path / "run", IDENTITY)
    draw, states = np.random.default_rng(0), {}
    for number, dataset in enumerate(("north", "south", "north")):
        ids = [f"{dataset}:{number}{row}" for row in range(4)]
        values = draw.normal(size=(4, 3, 5)).astype(np.float16)
        save_states(store, shard_name("clean", number), ids, values)
        states |= dict(zip(ids, values, strict=True))
    return store.path, states


def test_a_layer_is_read_in_the_order_of_the_ids(stored):
    path, states = stored
    ids = [id for id in reversed(states) if id.startswith("north")]
    bank = StateBank(path, [*ids, "north:none"])
    every = bank.all_layers("clean")
    for layer in (1, 2, 3):
        read = bank.layer("clean", layer)
        assert np.array_equal(read[:-1], [states[id][layer - 1] for id in ids])
        assert np.array_equal(read, every[:, layer - 1], equal_nan=True)
        assert np.isnan(read[-1]).all()


def test_a_shard_that_is_no_states_is_refused(stored):
    path, states = stored
    (path / shard_name("clean", 1)).write_bytes(b"something else")
    with pytest.raises(UserError, match="00001"):
        StateBank(path, list(states)).layer("clean", 1)


def test_shards_of_two_precisions_are_read_in_the_wider_one(tmp_path):
    """A value beyond the range of halves makes its shard single; the shard before it is not."""
    store = Store.open(tmp_path / "run", IDENTITY)
    small, large = np.ones((2, 1, 3), np.float16), np.full((2, 1, 3), 1e5, np.float32)
    save_states(store, shard_name("clean", 0), ["a", "b"], small)
    save_states(store, shard_name("clean", 1), ["c", "d"], [large[:1], small[:1]])
    read = StateBank(store.path, list("abcde")).layer("clean", 1)
    assert read.dtype == np.float32
    assert np.array_equal(read[:4, 0], [1, 1, 1e5, 1]) and np.isnan(read[4]).all()


def test_states_in_several_arrays_are_those_in_one(tmp_path):
    store = Store.open(tmp_path / "run", IDENTITY)
    values = np.random.default_rng(1).normal(size=(5, 2, 3)).astype(np.float16)
    save_states(store, "one.safetensors", list("abcde"), values)
    save_states(store, "several.safetensors", list("abcde"), [values[:2], values[2:]])
    one, several = (store.file(f"{name}.safetensors").read_bytes() for name in ("one", "several"))
    assert one == several
    values[3, 1, 2] = np.nan
    with pytest.raises(UserError, match=r"1 states for broken.*first: d"):
        save_states(store, "broken.safetensors", list("abcde"), [values[:2], values[2:]])
    assert not store.file("broken.safetensors").exists()
