"""Whole runs with every piece of evidence: however spread and killed, the tables are the same."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from kit.rivers import finish, half_right, rivers, run

pytestmark = pytest.mark.slow
WORKERS = ["--workers", "2"]


def killed_when(process: subprocess.Popen[str], file: Path) -> None:
    """Kills the command for good as soon as a file is there."""
    while not file.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()  # its children may hold its pipes for a while


def kill_a_worker(process: subprocess.Popen[str]) -> None:
    """Kills the second worker when it has begun."""
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(r"worker 2 of 2 is process (\d+)", line):
            os.kill(int(match[1]), signal.SIGKILL)
            return
    raise AssertionError(process.communicate())


def tables(run: Path) -> dict[str, bytes]:
    files = sorted((run / "tables").iterdir())
    return {path.name: path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The model, its questions, and the run of one undisturbed process: `alone`."""
    place = rivers(tmp_path_factory.mktemp("whole"))
    half_right(place)
    finish(run(place, "--out", "alone"))
    assert len(tables(place / "alone")) > 10
    return place


def test_killed_workers_and_drivers_change_no_table(place):
    """The driver in the middle of reading; then, in the run that goes on, a worker."""
    out = place / "killed"
    command = ["--out", out.name, *WORKERS]
    killed_when(run(place, *command), out / "markers/answers/00002.parquet.json")
    assert not (out / "samples.parquet").exists()
    process = run(place, *command)
    kill_a_worker(process)
    assert "a worker was lost" in finish(process)
    assert tables(out) == tables(place / "alone")


def test_a_killed_rank_changes_no_table(place):
    first, second = (["--out", "ranks", "--rank", n, "--world-size", "2"] for n in "01")
    other = run(place, *second)
    killed_when(run(place, *first), place / "ranks/markers/answers/00002.parquet.json")
    finish(other)
    finish(run(place, *first))
    finish(run(place, "--out", "ranks"))
    assert tables(place / "ranks") == tables(place / "alone")


def test_questions_asked_again_are_spread_too(place):
    """The tables of --robust, by one process and by two workers."""
    for name, words in {"robust": [], "robust-workers": WORKERS}.items():
        finish(run(place, "--out", name, "--robust", "--evidence", "none", *words))
    assert tables(place / "robust") == tables(place / "robust-workers")


def test_a_killed_node_of_a_ray_cluster_changes_no_table(place):
    """Two Ray nodes with a worker each; one of them is killed, and the other goes on."""
    from ray.cluster_utils import Cluster

    quiet = {"include_dashboard": False, "num_cpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args=quiet)
    try:
        second = cluster.add_node(num_cpus=1)
        out, address = place / "node", cluster.address
        process = run(place, "--out", "node", "--ray", address, "--workers", "2")
        while not (out / "markers/answers/00001.parquet.json").exists():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)
        finish(process)
    finally:
        cluster.shutdown()
    assert tables(out) == tables(place / "alone")
