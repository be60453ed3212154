"""The run folder's store through any order of faults, and the proof that a broken one is found."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from kit.folder_machine import IDENTITY, FolderMachine
from kit.power import Died, Disk

from anchorscope.errors import UserError
from anchorscope.run_folder import disk, store
from anchorscope.run_folder.disk import Written
from anchorscope.run_folder.manifest import RUN, info_text, read_marker
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

Patch = Callable[[pytest.MonkeyPatch], None]


def _marker_first(patch: pytest.MonkeyPatch) -> None:
    """The marker is written before the file that it speaks for."""
    real = disk.save_atomic

    def write(self: Store, name: str, save) -> None:
        data = io.BytesIO()
        save(data)
        digest = hashlib.sha256(data.getvalue()).hexdigest()
        self._mark(name, Written(len(data.getvalue()), digest))
        real(self.file(name), save)

    patch.setattr(Store, "write", write)


def _checksum_skipped(patch: pytest.MonkeyPatch) -> None:
    """A file of the right size is taken for the one that was written."""

    def has(self: Store, name: str) -> bool:
        entry = read_marker(self.path, name) or self._listed.get(name)
        file = self.file(name)
        return entry is not None and file.is_file() and file.stat().st_size == entry.bytes

    patch.setattr(Store, "has", has)


def _no_sync_of_files(patch: pytest.MonkeyPatch) -> None:
    """A file is renamed before its bytes are on the disk."""

    def write(target: Path, save) -> Written:
        disk._make_folder(target.parent)
        partial = target.with_name(f".{target.name}.partial")
        with partial.open("wb") as file:
            save(file)
        partial.replace(target)
        disk.sync_folder(target.parent)
        return disk.describe(target)

    patch.setattr(store, "save_atomic", write)


def _no_sync_of_folders(patch: pytest.MonkeyPatch) -> None:
    """Names are not brought to the disk."""
    patch.setattr(disk, "sync_folder", lambda folder: None)


def _no_sync_of_new_folders(patch: pytest.MonkeyPatch) -> None:
    """The name of a folder that was made for a file is not."""
    patch.setattr(disk, "_make_folder", lambda folder: folder.mkdir(parents=True, exist_ok=True))


def _in_place(patch: pytest.MonkeyPatch) -> None:
    """A file is written where it will stand."""

    def write(target: Path, save) -> Written:
        disk._make_folder(target.parent)
        with target.open("wb") as file:
            save(file)
            file.flush()
            os.fsync(file.fileno())
        disk.sync_folder(target.parent)
        return disk.describe(target)

    patch.setattr(store, "save_atomic", write)


def _finished_first(patch: pytest.MonkeyPatch) -> None:
    """A run says that it is finished before its files are listed."""

    def save_info(self: Store, changes: dict) -> None:
        self._put(RUN, info_text({**self.info, **changes}))
        if changes.get("finished"):
            self._put(RUN, info_text({**self.info, **self._listing().as_info()}))

    patch.setattr(Store, "save_info", save_info)


def _create_replaces(patch: pytest.MonkeyPatch) -> None:
    """Of several who create a file the last is heard."""

    def create(target: Path, data: bytes) -> Written:
        return disk.save_atomic(target, lambda file: file.write(data))

    patch.setattr(store, "create_atomic", create)


def _no_sync_on_opening(patch: pytest.MonkeyPatch) -> None:
    """A folder that somebody was killed over is taken as if its name were on the disk."""
    patch.setattr(store, "sync_folders", lambda folder: None)


QUICK: tuple[Patch, ...] = (
    _marker_first, _checksum_skipped, _no_sync_of_files, _no_sync_of_folders,
    _no_sync_of_new_folders, _create_replaces,
)  # fmt: skip
MUTANTS = (
    *QUICK,
    *(
        pytest.param(m, marks=pytest.mark.slow)
        for m in (_in_place, _finished_first, _no_sync_on_opening)
    ),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.strip("_"))
def test_the_machine_finds_a_broken_store(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mutant fails an assertion of the machine, or leaves no run that can be opened."""
    mutant(monkeypatch)
    asked = settings(SETTINGS, max_examples=1000, phases=[Phase.generate], database=None)
    with pytest.raises((AssertionError, UserError)):
        run_state_machine_as_test(FolderMachine, settings=asked)


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
