"""A run folder of many writers: one owner, and whole files."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest

import anchorscope
from anchorscope.errors import UserError
from anchorscope.records import Answer, Question, Sample, Span
from anchorscope.run_folder.disk import check_room, machine
from anchorscope.run_folder.samples import from_frame, to_frame
from anchorscope.run_folder.store import Store

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
    """Whether it lives is known from the lock, whatever owner.json says, and by no clock."""
    first = python(OWNER, tmp_path / "run")
    assert first.stdout is not None and first.stdout.readline() == "mine\n"
    store, file = Store.open(tmp_path / "run", ONE), tmp_path / "run/owner.json"
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
    store = Store.open(tmp_path, ONE)
    store.write("a", lambda file: file.write(b"12345678"))
    assert store.has("a")
    (tmp_path / "a").write_bytes(b"12345679")
    os.utime(tmp_path / "a", (1, 1))
    assert not store.has("a") and not Store.open(tmp_path, ONE).has("a")
    (tmp_path / "a").write_bytes(b"12345678")
    assert store.has("a") and Store.open(tmp_path, ONE).has("a")
    (tmp_path / "a").unlink()
    assert not store.has("a") and not Store.open(tmp_path, ONE).has("a")


def test_what_a_killed_writer_left_is_removed(tmp_path):
    store = Store.open(tmp_path, ONE)
    code = f"""
import os
from pathlib import Path
from anchorscope.run_folder.disk import save_atomic
save_atomic(Path({str(tmp_path / "x")!r}), lambda file: os._exit(0))
"""
    python(code).wait()
    assert len([p for p in tmp_path.iterdir() if p.name.endswith(".partial")]) == 1
    with store.owned():
        assert not [p for p in tmp_path.iterdir() if p.name.endswith(".partial")]


def test_another_format_is_refused(tmp_path):
    Store.open(tmp_path, ONE).save_info({"format": 4})
    with pytest.raises(UserError, match="has the format 4, and this anchorscope reads 3"):
        Store.open(tmp_path, ONE)


def test_a_disk_that_is_too_small_is_refused_before_it_is_filled(tmp_path):
    assert "0.50 GB" in check_room(tmp_path, 0.5e9)
    with pytest.raises(UserError, match=r"needs about 1000000000\.0 GB more, and .* are free"):
        check_room(tmp_path, 1e18)


@pytest.mark.parametrize("text", [b"[1]", b"\xff\xfe", b"{}", b'{"host": 7', b'{"bytes": "x"}'])
def test_a_damaged_marker_or_owner_file_counts_as_missing(tmp_path, text):
    """In a marker or owner.json: no traceback, and the file is not there."""
    store = Store.open(tmp_path, ONE)
    store.write("a", lambda file: file.write(b"x"))
    for name in ("markers/a.json", "owner.json"):
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


def test_a_machine_is_known_by_its_boot(monkeypatch):
    """Two machines may have one name, and after a boot process numbers mean nothing."""
    here, real = machine(), Path.read_text
    boot = "/proc/sys/kernel/random/boot_id"
    monkeypatch.setattr(
        Path, "read_text", lambda self: "another" if str(self) == boot else real(self)
    )
    assert machine() != here or not Path(boot).exists()
