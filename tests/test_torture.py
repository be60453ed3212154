"""Some trials of `make torture` in every `make test-slow`, and the counter of calls behind them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_every_call_that_changes_a_folder_is_counted(tmp_path):
    """Python 3.10's pathlib keeps functions of its own: a kill at `Path.replace` was none there."""
    script = """
import sys
from pathlib import Path
from torture.commands import count_to, watch_calls
folder, log = Path(sys.argv[1]), Path(sys.argv[1]) / "log"
watch_calls(before=count_to(log))
(folder / "a").mkdir()
(folder / "f").write_text("x")
(folder / "f").replace(folder / "g")
(folder / "g").rename(folder / "h")
(folder / "k").hardlink_to(folder / "h")
(folder / "k").unlink()
(folder / "a").rmdir()
"""
    subprocess.run([sys.executable, "-c", script, tmp_path], env=ENVIRONMENT, check=True)
    assert (tmp_path / "log").read_text() == "mrrlur"
