"""The run folder's store through any order of faults, and the proof that a broken one is found."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from kit.folder_machine import IDENTITY, FolderMachine
from kit.power import Died, Disk

from anchorscope.run_folder.store import Store

SETTINGS = settings(
    max_examples=int(os.environ.get("MACHINE_EXAMPLES", "10")),
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestFolderMachine = FolderMachine.TestCase
TestFolderMachine.settings = SETTINGS


@pytest.mark.parametrize("call", range(1, 24))
def test_what_is_written_after_a_kill_outlives_a_power_cut(tmp_path: Path, call: int) -> None:
    """One is killed before some call, another goes on, and the power goes."""
    disk, run = Disk(tmp_path), tmp_path / "run"
    with suppress(Died), disk.dying(call):
        first = Store.open(run, IDENTITY)
        first.write("states/clean/00000.safetensors", lambda file: file.write(b"first"))
    with disk.dying():
        Store.open(run, IDENTITY).write(
            "states/clean/00001.safetensors", lambda f: f.write(b"kept")
        )
    disk.lose_power(lambda: False)
    assert Store.open(run, IDENTITY).has("states/clean/00001.safetensors")
