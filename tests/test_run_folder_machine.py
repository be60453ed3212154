"""The run folder's store against a plain model of what must be there, through any order of faults.

A rule machine writes files, dies at any call of the file system, opens the folder again, damages
files, and asks. The model is a dictionary of what was written for good.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anchorscope.errors import UserError
from anchorscope.run_folder import whole
from anchorscope.run_folder.checks.verify import verify_run
from anchorscope.run_folder.info import COPY, read_info
from anchorscope.run_folder.listing import damaged_files
from anchorscope.run_folder.store import Store

IDENTITY = {"model": "tiny", "limit": 8}
NAMES = ("answers/00000.parquet", "states/clean/00000.safetensors", "tables/layers.csv", "samples")
CALLS = ("fsync", "replace", "link")
names, contents = st.sampled_from(NAMES), st.binary(min_size=1, max_size=64)


class Died(BaseException):
    """The process ends here: nothing after this call happens, no handler runs but `finally`."""


class FolderMachine(RuleBasedStateMachine):
    """A store, and beside it what it was told to keep."""

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp())
        self.path = self.home / "run"
        self.store = Store.open(self.path, IDENTITY)
        self.kept: dict[str, bytes] = {}  # written for good
        self.unsure: dict[str, set[bytes]] = {}  # died while writing: the old one or the new one
        self.broken: set[str] = set()  # damaged since
        self.noted: dict[str, int] = {}  # in run.json

    def teardown(self) -> None:
        shutil.rmtree(getattr(self, "home", "/nonexistent"), ignore_errors=True)

    @rule(name=names, data=contents)
    def write(self, name: str, data: bytes) -> None:
        self.store.write(name, lambda file: file.write(data))
        self.kept[name] = data
        self.unsure.pop(name, None)
        self.broken.discard(name)

    @rule(name=names, data=contents, call=st.integers(1, 6))
    def die_while_writing(self, name: str, data: bytes, call: int) -> None:
        if _dies_at(call, lambda: self.store.write(name, lambda file: file.write(data))):
            before = self.unsure.get(name, set()) | {self.kept.get(name, b"")}
            self.unsure[name] = before | {data}
            self.kept.pop(name, None)
            self.reopen()
        else:
            self.kept[name] = data
            self.unsure.pop(name, None)
            self.broken.discard(name)

    @rule(number=st.integers(0, 9))
    def note(self, number: int) -> None:
        self.store.save_info({"number": number})
        self.noted["number"] = number

    @rule(number=st.integers(0, 9), call=st.integers(1, 8))
    def die_while_noting(self, number: int, call: int) -> None:
        before = read_info(self.path)
        if _dies_at(call, lambda: self.store.save_info({"number": number})):
            self.reopen()
            now = read_info(self.path)
            assert before is not None and now in (before, before | {"number": number})
            self.noted = {"number": now["number"]} if now and "number" in now else {}
        else:
            self.noted["number"] = number

    @rule()
    def reopen(self) -> None:
        """Another process comes: it knows nothing but the folder."""
        self.store = Store.open(self.path, IDENTITY)

    @rule()
    def finish(self) -> None:
        self.store.save_info({"finished": True})
        listed = {json.loads(line)["name"] for line in (self.path / "manifest.jsonl").open()}
        assert set(self.kept) - self.broken <= listed

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), at=st.integers(0, 63), bit=st.integers(0, 7))
    def flip_a_bit(self, data: st.DataObject, at: int, bit: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.kept)))
        file = self.path / name
        if name not in self.broken and file.is_file():
            content = bytearray(file.read_bytes())
            content[at % len(content)] ^= 1 << bit
            file.write_bytes(content)
            self.broken.add(name)
            self.reopen()

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), how=st.sampled_from(["torn", "noise", "gone"]))
    def lose_a_marker(self, data: st.DataObject, how: str) -> None:
        """A file without its marker is not there, unless the manifest still speaks for it."""
        name = data.draw(st.sampled_from(sorted(self.kept)))
        marker = self.path / "markers" / f"{name}.json"
        if marker.is_file() and not (self.path / "manifest.jsonl").is_file():
            torn = {"torn": marker.read_bytes()[:-9], "noise": b"\xff\x00{"}
            marker.unlink() if how == "gone" else marker.write_bytes(torn[how])
            self.broken.add(name)
            self.reopen()

    @rule(cut=st.integers(0, 30))
    def lose_run_json(self, cut: int) -> None:
        """It is refused with the way out, and taking that way loses nothing."""
        file = self.path / "run.json"
        if (self.path / COPY).is_file():
            file.write_bytes(file.read_bytes()[:cut])
            with pytest.raises(UserError, match="is a whole copy"):
                Store.open(self.path, IDENTITY)
            shutil.copy(self.path / COPY, file)
            self.reopen()
            now = read_info(self.path)
            self.noted = {"number": now["number"]} if now and "number" in now else {}

    @invariant()
    def what_was_kept_is_there_and_nothing_broken_is(self) -> None:
        for name in NAMES:
            if name in self.kept:
                assert self.store.has(name) == (name not in self.broken), name
                if name not in self.broken:
                    assert (self.path / name).read_bytes() == self.kept[name]
            elif name in self.unsure:
                if self.store.has(name):
                    assert (self.path / name).read_bytes() in self.unsure[name] - {b""}
            else:
                assert not self.store.has(name)

    @invariant()
    def what_was_noted_is_there(self) -> None:
        info = read_info(self.path)
        assert info is not None and info["identity"] == IDENTITY
        assert {n: info[n] for n in self.noted} == self.noted

    @invariant()
    def verify_names_exactly_what_is_broken(self) -> None:
        wrong = {checked.name for checked in verify_run(self.path) if not checked.ok}
        wrong -= {"finished", *(name for name in self.unsure)}
        assert {w.removeprefix("markers/").removesuffix(".json") for w in wrong} <= self.broken
        assert set(damaged_files(self.path)) - set(self.unsure) <= self.broken


def _dies_at(call: int, work) -> bool:
    """Whether the process died at the call of this number; if not, the work is done."""
    real, count = {name: getattr(os, name) for name in CALLS}, [0]
    unlink = Path.unlink

    def dying(name: str):
        def called(*args, **options):
            count[0] += 1
            if count[0] >= call:
                Path.unlink = lambda *_, **__: None  # a dead process tidies nothing up
                raise Died
            return real[name](*args, **options)

        return called

    try:
        for name in CALLS:
            setattr(os, name, dying(name))
        work()
    except Died:
        return True
    finally:
        Path.unlink = unlink
        for name in CALLS:
            setattr(os, name, real[name])
    return False


TestFolderMachine = FolderMachine.TestCase
TestFolderMachine.settings = settings(
    max_examples=int(os.environ.get("MACHINE_EXAMPLES", "10")),
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def test_the_machine_watches_the_calls_that_whole_files_make() -> None:
    """The calls at which it dies are those by which a file comes to its place."""
    source = Path(whole.__file__).read_text(encoding="utf-8")
    assert all(f"os.{name}(" in source for name in ("fsync", "link"))
    assert "partial.replace(" in source  # pathlib's way to call os.replace
