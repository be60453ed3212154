"""A dataset analysed while the next is read: the same bytes, errors, and a run that goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from kit.rivers import contents, river_rows, rivers

import anchorscope
from anchorscope.pipeline import analyse, executor

pytestmark = pytest.mark.usefixtures("no_pictures")
DATA = ("north", "south")
RUN = (
    "run", "--model", "model", "--data", ",".join(f"{name}.jsonl" for name in DATA),
    "--verdicts", "verdicts.jsonl", "--limit", "all", "--max-tokens", "4", "--resamples", "100",
    "--fold-seeds", "1", "--folds", "3", "--dtype", "float32", "--device", "cpu", "--prompt",
    "text", "--shard", "32", "--threads", "1", "--evidence", "none",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and two question sets, with verdicts that say wrong of every other."""
    folder, verdicts = rivers(tmp_path_factory.mktemp("overlap")), []
    for seed, name in enumerate(DATA):
        rows = river_rows(64, seed)
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        verdicts += [{"id": f"{name}:all:{r['id']}", "right": n % 2} for n, r in enumerate(rows)]
    text = "\n".join(map(json.dumps, verdicts))
    (folder / "verdicts.jsonl").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def apart(here, cli) -> Path:
    """The run that analyses when all is read; made by the first test that needs it."""
    if not (here / "apart").exists():
        code, _, error = cli(*RUN, "--out", "apart")
        assert code == 0, error
    return here / "apart"


def results(run: Path) -> dict[str, bytes]:
    probes = {str(p): p.read_bytes() for p in (run / "probes").rglob("*") if p.is_file()}
    return contents(run) | {name.removeprefix(str(run)): data for name, data in probes.items()}


def test_overlapped_analysis_writes_the_same_bytes(apart, here, cli, monkeypatch):
    """Every table, probe and sample, all of it made by the other process."""
    monkeypatch.setattr(executor, "_cores_are_idle", lambda run: True)
    monkeypatch.setattr(analyse, "train_probes", None)  # this process cannot
    code, _, error = cli(*RUN, "--out", "overlapped")
    assert code == 0, error
    assert results(here / "overlapped") == results(apart)


def test_a_dataset_that_cannot_be_analysed_is_one_sentence(here, cli, monkeypatch):
    """The judge finds every answer of the first dataset wrong; the second is read to its end."""
    lines = (here / "verdicts.jsonl").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if "north" not in line]
    (here / "right.jsonl").write_text("\n".join(kept), encoding="utf-8")
    words = [word.replace("verdicts.jsonl", "right.jsonl") for word in RUN]
    monkeypatch.setattr(executor, "_cores_are_idle", lambda run: True)
    code, _, error = cli(*words, "--out", "failed")
    assert code == 2
    assert "north" in error.splitlines()[-1]
    assert "Traceback" not in error
    assert len(list((here / "failed/answers").glob("*.parquet"))) == 4


OVERLAPPED = """
import time
from anchorscope.cli import main
from anchorscope.pipeline import executor, read_states
executor._cores_are_idle = lambda run: True
read = read_states.Worker.read
def slowly(self, *, shard, **given):
    if shard.number == 3:
        time.sleep(300)  # a model that is far slower than the analysis
    return read(self, shard=shard, **given)
read_states.Worker.read = slowly
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.slow
def test_resume_after_a_kill_while_both_go_on_is_byte_equal(apart, here, cli):
    """Killed when the first dataset's probes are there: nothing is lost."""
    environment = os.environ | {"PYTHONPATH": str(Path(anchorscope.__file__).parents[1])}
    command = [sys.executable, "-c", OVERLAPPED, *RUN, "--out", "killed"]
    process = subprocess.Popen(command, cwd=here, env=environment, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list((here / "killed/probes").glob("north/*.json")):
        time.sleep(0.05)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    process.kill()
    process.wait(timeout=120)
    for worker in workers:
        worker.kill()
    assert psutil.wait_procs(workers, timeout=60)[1] == []
    code, _, error = cli(*RUN, "--out", "killed")
    assert code == 0, error
    assert results(here / "killed") == results(apart)
