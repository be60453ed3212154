"""Work in several processes: the order of the results, and the folder they are asked from."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from threadpoolctl import threadpool_info

from anchorscope.errors import UserError
from anchorscope.parallel import in_parallel


def test_workers_follow_the_caller_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are kept from call to call: a relative path must mean the caller's folder of now."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "here.txt").write_text(name, encoding="utf-8")
    for name in ("one", "two"):
        monkeypatch.chdir(tmp_path / name)
        read = in_parallel(lambda _: (os.getpid(), Path("here.txt").read_text()), [0, 1], workers=2)
        assert {text for _, text in read} == {name}
        assert os.getpid() not in {process for process, _ in read}


def test_a_worker_starts_no_workers():
    def nested(_: int) -> set[int]:
        return {os.getpid(), *in_parallel(lambda _: os.getpid(), range(3), workers=2)}

    assert {len(pids) for pids in in_parallel(nested, range(4), workers=2)} == {1}


@pytest.mark.parametrize("workers", [1, 2])
def test_arithmetic_has_one_thread(workers):
    def threads(_: int) -> set[int]:
        np.ones((2, 2)) @ np.ones((2, 2))
        return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}

    assert in_parallel(threads, range(2), workers=workers) == [{1}, {1}]


def test_a_mistake_stays_the_user_s():
    def fail(number: int) -> int:
        if number == 1:
            raise UserError("Layer 1 holds NaN.")
        return number

    with pytest.raises(UserError, match=r"Layer 1 holds NaN\."):
        in_parallel(fail, range(3), workers=2)


BUSY = """
import os, sys, time
from pathlib import Path
from anchorscope.parallel import in_parallel

def work(item):
    place = Path(sys.argv[1])
    while sys.argv[2] == "busy" or len(list(place.iterdir())) < 2:  # idle: once both have begun
        Path(place, str(os.getpid())).write_text(str(time.time()))
        time.sleep(0.2)

in_parallel(work, range(2), workers=2)
time.sleep(300)
"""


@pytest.mark.skipif(not hasattr(os, "getppid"), reason="a process has no parent to ask for")
@pytest.mark.parametrize("when", ["busy", "idle"])
def test_workers_end_soon_after_a_parent_that_was_killed(tmp_path, when):
    """Before: they finished their items and wrote files, and then waited for five minutes."""
    words = [sys.executable, "-c", BUSY, str(tmp_path), when]
    path = os.pathsep.join(part for part in sys.path if part)
    env = os.environ | {"PYTHONPATH": path, "LOKY_MAX_CPU_COUNT": "2"}
    parent = subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL)
    try:
        _until(lambda: len(list(tmp_path.iterdir())) == 2, 180)
        if when == "idle":
            time.sleep(2)
        workers = psutil.Process(parent.pid).children(recursive=True)
        assert {int(file.name) for file in tmp_path.iterdir()} <= {one.pid for one in workers}
    finally:
        parent.kill()
        parent.wait()
    killed = time.time()
    _until(lambda: not any(map(_alive, workers)), 60)  # a busy one would go on for ever
    written = [float(file.read_text() or 0) for file in tmp_path.iterdir()]
    assert max(written) < killed + 30


def _until(holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
