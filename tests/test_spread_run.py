"""Whole runs of the bundled model: however they were spread and killed, the tables are the same."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

OPTIONS = ["--data", "atlas", "--limit", "80", "--max-tokens", "6", "--resamples", "100"]
OPTIONS += ["--shard", "8", "--prompt", "text", "--dtype", "float32", "--device", "cpu"]
OPTIONS += ["--fold-seeds", "1", "--evidence", "answer-only,patching,saliency,heads"]
OPTIONS += ["--ablate", "spans"]
pytestmark = pytest.mark.slow


def anchorscope(out: Path, *words: str) -> subprocess.Popen[str]:
    main = [sys.executable, "-c", "from anchorscope.cli import main; main()"]
    command = [*main, "run", *OPTIONS, *words, "--out", str(out)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=os.environ.copy(), **pipes)


def finish(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=1200)
    assert process.returncode == 0, error
    return out + error


def killed_when(process: subprocess.Popen[str], file: Path) -> None:
    """Kills the command for good as soon as a file is there."""
    while not file.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def kill_a_worker(process: subprocess.Popen[str]) -> None:
    """Kills the second worker when it has begun."""
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(r"worker 2 of 2 is process (\d+)", line):
            time.sleep(0.5)
            os.kill(int(match[1]), signal.SIGKILL)
            return
    raise AssertionError(process.communicate())


def tables(run: Path) -> dict[str, bytes]:
    files = sorted((run / "tables").iterdir())
    assert len(files) > 10
    return {path.name: path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def alone(bundled, tmp_path_factory) -> dict[str, bytes]:
    """The tables of one undisturbed process."""
    out = tmp_path_factory.mktemp("whole") / "run"
    finish(anchorscope(out))
    return tables(out)


SPREAD = {"workers": ["--workers", "2"], "ray": ["--ray", "local", "--workers", "2"]}


@pytest.mark.parametrize("how", list(SPREAD))
def test_a_killed_worker_changes_no_table(alone, tmp_path, how):
    process = anchorscope(tmp_path / "run", *SPREAD[how])
    kill_a_worker(process)
    assert "worker 2 was lost" in finish(process)
    assert tables(tmp_path / "run") == alone


@pytest.mark.parametrize("how", list(SPREAD))
def test_a_killed_driver_changes_no_table(alone, tmp_path, how):
    out = tmp_path / "run"
    killed_when(anchorscope(out, *SPREAD[how]), out / "markers/answers/00003.parquet.json")
    assert not (out / "samples.parquet").exists()
    finish(anchorscope(out, *SPREAD[how]))
    assert tables(out) == alone


def test_killed_ranks_change_no_table(alone, tmp_path):
    out = tmp_path / "run"

    def rank(number: int) -> subprocess.Popen[str]:
        return anchorscope(out, "--rank", str(number), "--world-size", "2")

    second = rank(1)
    killed_when(rank(0), out / "markers/answers/00002.parquet.json")
    finish(second)
    finish(rank(0))
    finish(anchorscope(out))
    assert tables(out) == alone
