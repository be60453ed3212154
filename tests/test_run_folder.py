"""A run folder of many writers: one owner, whole files, and folders of the first format."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import psutil
import pytest
from kit.rivers import GOLDEN, contents

import anchorscope
from anchorscope.errors import UserError
from anchorscope.records import Answer, Question, Sample, Span
from anchorscope.run_folder.checks.room import check_room
from anchorscope.run_folder.samples import from_frame, to_frame
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView

ONE = {"model": "bundled", "limit": 8}
OWNER = """
import sys, time
from anchorscope.run_folder.store import Store
with Store.open(sys.argv[1], {"model": "bundled", "limit": 8}).owned():
    print("mine", flush=True)
    time.sleep(60)
"""
WRITER = """
import sys
import threading
from anchorscope.run_folder.store import Store
store = Store.open(sys.argv[1], {"model": "bundled", "limit": 8})
for n in range(20):
    store.write("same.bin", lambda file: file.write(b"x" * 300_000))
    store.write(f"own/{sys.argv[2]}-{n}", lambda file: file.write(sys.argv[2].encode() * 1000))
"""


def python(code: str, *words: object) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(anchorscope.__file__).parents[1])}
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)


def test_a_marker_says_what_is_in_the_file(tmp_path):
    store = Store.open(tmp_path, ONE)
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "ü"]})
    store.write("t.csv", lambda file: frame.to_csv(file, index=False))
    store.write("t.parquet", frame.to_parquet)
    assert (tmp_path / "t.csv").read_text(encoding="utf-8") == frame.to_csv(index=False)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), frame)
    for name in ("t.csv", "t.parquet"):
        data = (tmp_path / name).read_bytes()
        marker = json.loads((tmp_path / "markers" / f"{name}.json").read_text())
        sha256 = hashlib.sha256(data).hexdigest()
        assert marker == {"name": name, "bytes": len(data), "sha256": sha256}


def test_many_writers_of_one_folder_leave_every_file_whole(tmp_path):
    out = tmp_path / "run"
    writers = [python(WRITER, out, name) for name in "abcd"]
    assert [process.wait(120) for process in writers] == [0] * 4
    store = Store(out)
    assert all(store.has(f"own/{name}-{n}") for name in "abcd" for n in range(20))
    assert store.has("same.bin")
    assert not [path for path in out.rglob("*") if "partial" in path.name]
    store.save_info({"finished": True})
    assert len(json.loads((out / "run.json").read_text())["files"]) == 81


def test_a_second_owner_is_refused_until_the_first_is_gone(tmp_path):
    first = python(OWNER, tmp_path / "run")
    assert first.stdout is not None and first.stdout.readline() == "mine\n"
    store = Store.open(tmp_path / "run", ONE)
    said = f"is being written by process {first.pid} on"
    with pytest.raises(UserError, match=said), store.owned():
        raise AssertionError
    first.send_signal(signal.SIGKILL)
    first.wait()
    with store.owned():
        store.save_info({"mine": True})
    assert not (tmp_path / "run/owner.json").exists()


ELSEWHERE = """
import pathlib, sys
real = pathlib.Path.read_text
def read(self, *how, **more):
    other = self.as_posix() == "/proc/sys/kernel/random/boot_id"
    return "another-boot" if other else real(self, *how, **more)
pathlib.Path.read_text = read
"""


@pytest.mark.skipif(not Path("/proc/sys/kernel/random/boot_id").exists(), reason="Linux alone")
def test_an_owner_of_another_machine_with_the_same_name_is_not_taken_for_dead(
    tmp_path, monkeypatch
):
    """Two machines of one name are told apart by their boots, and process numbers say nothing."""
    first = python(ELSEWHERE + OWNER, tmp_path / "run")
    assert first.stdout is not None and first.stdout.readline() == "mine\n"
    first.kill()  # so that no process of its number is here; it might be alive over there
    first.wait()
    store = Store.open(tmp_path / "run", ONE)
    with pytest.raises(UserError, match=f"is being written by process {first.pid} on"):
        store.owned().__enter__()
    monkeypatch.setattr("anchorscope.run_folder.owner._WATCH", 0.1)
    os.utime(tmp_path / "run/owner.json", (time.time() - 600,) * 2)
    with store.owned():
        assert json.loads((tmp_path / "run/owner.json").read_text())["process"] == os.getpid()


def test_a_file_whose_bytes_changed_is_not_there(tmp_path):
    """Its size is as before: its checksum alone shows it, to the writer and to the next process."""
    store = Store.open(tmp_path, ONE)
    store.write("a", lambda file: file.write(b"12345678"))
    assert store.has("a")
    (tmp_path / "a").write_bytes(b"12345679")
    os.utime(tmp_path / "a", (1, 1))
    assert not store.has("a") and not Store.open(tmp_path, ONE).has("a")
    (tmp_path / "a").write_bytes(b"12345678")
    assert store.has("a") and Store.open(tmp_path, ONE).has("a")


def test_an_owner_elsewhere_counts_as_long_as_it_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr("anchorscope.run_folder.owner._WATCH", 0.1)
    store = Store.open(tmp_path, ONE)
    elsewhere = {"host": "elsewhere", "process": 1, "begun": 0, "since": "then", "token": "x"}
    (tmp_path / "owner.json").write_text(json.dumps(elsewhere))
    with pytest.raises(UserError, match="process 1 on elsewhere"), store.owned():
        raise AssertionError
    long_ago = time.time() - 600
    os.utime(tmp_path / "owner.json", (long_ago, long_ago))
    with store.owned():
        # Another took it for left: the next word into run.json is refused.
        (tmp_path / "owner.json").write_text(json.dumps(elsewhere))
        with pytest.raises(UserError, match="taken over"):
            store.save_info({"mine": True})


def test_what_a_killed_writer_left_is_removed(tmp_path):
    store = Store.open(tmp_path, ONE)
    code = f"""
import os
from pathlib import Path
from anchorscope.run_folder.whole import write_whole
write_whole(Path({str(tmp_path / "x")!r}), lambda file: os._exit(0))
"""
    python(code).wait()
    assert len([p for p in tmp_path.iterdir() if p.name.endswith(".partial")]) == 1
    with store.owned():
        assert not [p for p in tmp_path.iterdir() if p.name.endswith(".partial")]


def test_a_format_of_the_future_is_refused(tmp_path):
    Store.open(tmp_path, ONE).save_info({"format": 4})
    with pytest.raises(UserError, match="has the format 4, and this anchorscope reads up to 3"):
        Store.open(tmp_path, ONE)


def test_a_folder_of_the_first_format_is_read():
    view = RunView.open(GOLDEN / "simulated")
    assert "format" not in view.info
    assert len(view.samples) == 60 and set(view.layers["layer"]) == {1, 2}
    assert not view.has_strict  # its verdict.csv is of another kind than findings.csv
    assert len(RunView.open(GOLDEN / "collected", collected_ok=True).answers) == 8


def test_a_folder_of_the_first_format_is_not_continued(tmp_path):
    """Its states are of other exact tokens than those of today: both in one table say nothing."""
    run = Path(shutil.copytree(GOLDEN / "collected", tmp_path / "run"))
    before = contents(run)
    identity = json.loads((run / "run.json").read_text())["identity"]
    with pytest.raises(UserError, match=r"begun by an earlier version.* choose another --out"):
        Store.open(run, identity)
    assert contents(run) == before


def test_a_disk_that_is_too_small_is_told_before_it_is_filled(tmp_path):
    assert "0.50 GB" in check_room(tmp_path, 0.5e9)
    with pytest.raises(UserError, match=r"needs about 1000000000\.0 GB more, and .* are free"):
        check_room(tmp_path, 1e18)


def test_an_owner_is_known_whatever_the_clock_says(tmp_path, monkeypatch):
    """Psutil counts a process's birth from the boot, and a clock that is set moves the boot."""
    first = python(OWNER, tmp_path / "run")
    assert first.stdout is not None and first.stdout.readline() == "mine\n"
    birth = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: birth(self) + 7200)
    store = Store.open(tmp_path / "run", ONE)
    with pytest.raises(UserError, match=f"process {first.pid} on"), store.owned():
        raise AssertionError
    first.kill()
    first.wait()


@pytest.mark.parametrize("jump", [-86400, 86400])
def test_an_owner_elsewhere_is_watched_before_its_silence_is_believed(tmp_path, monkeypatch, jump):
    """A disk's clock that jumped makes every sign of life old, or one of the future."""
    monkeypatch.setattr("anchorscope.run_folder.owner._WATCH", 0.3)
    store, file = Store.open(tmp_path, ONE), tmp_path / "owner.json"
    elsewhere = {"host": "elsewhere", "process": 1, "begun": 0, "since": "then", "token": "x"}
    file.write_text(json.dumps(elsewhere))
    os.utime(file, (time.time() + jump,) * 2)
    beat = threading.Timer(0.1, os.utime, [file])  # it lives, and gives its next sign
    beat.start()
    with pytest.raises(UserError, match="process 1 on elsewhere"), store.owned():
        raise AssertionError
    beat.join()
    os.utime(file, (time.time() + jump,) * 2)
    with store.owned():  # and this time none
        assert json.loads(file.read_text())["host"] != "elsewhere"


@pytest.mark.parametrize("text", [b"[1]", b"\xff\xfe", b"{}", b'{"host": 7', b'{"bytes": "x"}'])
def test_a_small_file_that_makes_no_sense_is_none(tmp_path, text):
    """In a marker, a manifest or owner.json: no traceback, and the file is not there."""
    store = Store.open(tmp_path, ONE)
    store.write("a", lambda file: file.write(b"x"))
    for name in ("markers/a.json", "manifest.jsonl", "owner.json"):
        (tmp_path / name).write_bytes(text)
    again = Store.open(tmp_path, ONE)
    assert not again.has("a")
    with again.owned():
        again.write("a", lambda file: file.write(b"x"))
    assert again.has("a")


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
