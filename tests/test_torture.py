"""Some trials of `make torture` in every `make test-slow`, and the counter of calls behind them."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from pathlib import Path

import pytest
from torture.commands import CALLS, count_to, watch_calls

ROOT = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="trials are forked")
def test_a_kill_and_a_full_disk_lose_nothing():
    """In a process of its own, which forks: this one has threads by now."""
    chosen = "(file_system_call and collect-0.5) or (full and ENOSPC and collect-0.5)"
    command = [sys.executable, "-m", "pytest", "tests/torture/test_faults.py", "-m", "torture"]
    done = subprocess.run(
        [*command, "-k", chosen, "-p", "no:cacheprovider"],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


def test_every_call_that_changes_a_folder_is_counted(tmp_path, monkeypatch):
    """Python 3.10's pathlib keeps functions of its own: a kill at `Path.replace` was none there."""
    for place in filter(None, (os, getattr(pathlib, "_normal_accessor", None))):
        for name in CALLS:
            if hasattr(place, name):  # put back when the test ends
                monkeypatch.setattr(place, name, getattr(place, name))
    watch_calls(before=count_to(tmp_path / "log"))
    (tmp_path / "a").mkdir()
    (tmp_path / "f").write_text("x")
    (tmp_path / "f").replace(tmp_path / "g")
    (tmp_path / "g").rename(tmp_path / "h")
    (tmp_path / "k").hardlink_to(tmp_path / "h")
    (tmp_path / "k").unlink()
    (tmp_path / "a").rmdir()
    assert (tmp_path / "log").read_text() == "mrrlur"
