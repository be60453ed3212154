"""The short version of `make torture`: real commands killed, and refused room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="trials are forked")
def test_a_few_faults_are_survived_and_nothing_is_lost(tmp_path):
    """In a process of its own, which forks: this one has threads by now."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "torture.faults", "--short"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    sums = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    assert done.returncode == 0, done.stdout + done.stderr
    assert sums == {"faults tried": 2, "survived": 2, "data lost": 0}
    assert not list(tmp_path.iterdir())


def test_every_call_that_changes_a_folder_is_counted_whoever_makes_it(tmp_path):
    """Python 3.10's pathlib keeps functions of its own: a kill at `Path.replace` was none there."""
    script = """
import sys
from pathlib import Path
from torture.faults.points import counted
folder, log = Path(sys.argv[1]), Path(sys.argv[1]) / "log"
counted(log)()
(folder / "a").mkdir()
(folder / "f").write_text("x")
(folder / "f").replace(folder / "g")
(folder / "g").rename(folder / "h")
(folder / "k").hardlink_to(folder / "h")
(folder / "k").unlink()
(folder / "a").rmdir()
"""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    subprocess.run([sys.executable, "-c", script, tmp_path], env=environment, check=True)
    assert (tmp_path / "log").read_text() == "mrrlur"
