"""A Hypothesis state machine that compares the run folder's store with a model under faults.

It writes files, dies before any call that changes the folder, loses power with unsynced changes,
reopens the folder, damages files, and checks what the store reports. The model is a dictionary of
completed writes. The environment variable `MACHINE_EXAMPLES` sets the number of examples.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anchorscope.errors import UserError
from anchorscope.run_folder.manifest import read_info, read_listing, verify_run
from anchorscope.run_folder.store import Store
from kit.power import Died, Disk

IDENTITY = {"model": "tiny", "limit": 8}
NAMES = ("answers/00000.parquet", "states/clean/00000.safetensors", "tables/layers.csv", "samples")
names, contents = st.sampled_from(NAMES), st.binary(min_size=2, max_size=64)
# A file takes four calls, its marker four more; the first file in nested folders about twenty.
calls, calls_of_files = st.integers(1, 12), st.one_of(st.integers(1, 8), st.integers(9, 24))


class FolderMachine(RuleBasedStateMachine):
    """A store, and a model of what it must hold."""

    @initialize(call=st.integers(1, 12), data=st.data())
    def begin(self, call: int, data: st.DataObject) -> None:
        """Open a new run folder; the process may die while it writes run.json."""
        self.home = Path(tempfile.mkdtemp())
        self.path, self.disk = self.home / "run", Disk(self.home)
        self.kept: dict[str, bytes] = {}  # completed writes
        self.unsure: dict[str, set[bytes]] = {}  # died while writing: the old one or the new one
        self.flipped: set[str] = set()  # its bytes were damaged since
        self.unmarked: set[str] = set()  # its marker was damaged or removed
        self.noted: dict[str, int] = {}  # in run.json
        self.finished = False
        self._dies(call, data, lambda: Store.open(self.path, IDENTITY))
        self.reopen()

    def teardown(self) -> None:
        shutil.rmtree(getattr(self, "home", "/nonexistent"), ignore_errors=True)

    @rule(name=names, content=contents)
    def write(self, name: str, content: bytes) -> None:
        with self.disk.dying():
            self.store.write(name, lambda file: file.write(content))
        self._keep(name, content)

    @rule(name=names, content=contents, call=calls_of_files, data=st.data())
    def die_while_writing(self, name: str, content: bytes, call: int, data: st.DataObject) -> None:
        def work() -> None:
            self.store.write(name, lambda file: file.write(content))

        if self._dies(call, data, work):
            before = self.unsure.get(name, set()) | {self.kept.pop(name, b"")}
            self.unsure[name] = before | {content}
            self.reopen()
        else:
            self._keep(name, content)

    def _keep(self, name: str, content: bytes) -> None:
        self.kept[name] = content
        self.unsure.pop(name, None)
        self.flipped.discard(name)
        self.unmarked.discard(name)

    @rule(number=st.integers(0, 9))
    def note(self, number: int) -> None:
        with self.disk.dying():
            self.store.save_info({"number": number})
        self.noted["number"] = number

    @rule(number=st.integers(0, 9), call=calls, data=st.data())
    def die_while_noting(self, number: int, call: int, data: st.DataObject) -> None:
        before = read_info(self.path)
        if self._dies(call, data, lambda: self.store.save_info({"number": number})):
            self.reopen()
            now = read_info(self.path)
            assert before is not None and now in (before, before | {"number": number})
            self.noted = {"number": now["number"]} if now and "number" in now else {}
        else:
            self.noted["number"] = number

    @rule(data=st.data())
    def lose_power(self, data: st.DataObject) -> None:
        """Lose power between writes: nothing is lost."""
        self._power_cut(data)
        self.reopen()

    @rule()
    def reopen(self) -> None:
        """Open the folder as a new process does."""
        with self.disk.dying():
            self.store = Store.open(self.path, IDENTITY)

    @rule(call=st.one_of(calls, st.none()), data=st.data())
    def finish(self, call: int | None, data: st.DataObject) -> None:
        """Mark the run as finished: it then lists every file."""
        before = self.finished
        self._dies(call, data, lambda: self.store.save_info({"finished": True}))
        self.reopen()
        self.finished = bool((read_info(self.path) or {}).get("finished"))
        assert self.finished or call is not None
        if self.finished and not before:
            assert {*self.kept} - self.unmarked <= {*read_listing(self.path)}
        assert not self.unmarked & {*read_listing(self.path)}, "a file without a marker is listed"

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), at=st.integers(0, 63), bit=st.integers(0, 7))
    def flip_a_bit(self, data: st.DataObject, at: int, bit: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.kept)))
        file = self.path / name
        if name not in self.flipped | self.unmarked:
            content = bytearray(file.read_bytes())
            content[at % len(content)] ^= 1 << bit
            file.write_bytes(content)
            self.flipped.add(name)
            self.disk.settle()
            self.reopen()

    @precondition(lambda self: {*self.kept} - self.flipped)
    @rule(data=st.data(), damage=st.sampled_from(["torn", "noise", "gone"]))
    def lose_a_marker(self, data: st.DataObject, damage: str) -> None:
        """Damage or remove a marker: its file counts as missing, unless run.json lists it."""
        name = data.draw(st.sampled_from(sorted({*self.kept} - self.flipped)))
        marker = self.path / "markers" / f"{name}.json"
        if marker.is_file() and not self.finished:
            torn = {"torn": marker.read_bytes()[:-9], "noise": b"\xff\x00{"}
            marker.unlink() if damage == "gone" else marker.write_bytes(torn[damage])
            self.unmarked.add(name)
            self.disk.settle()
            self.reopen()

    @rule(cut=st.integers(0, 30))
    def lose_run_json(self, cut: int) -> None:
        """Truncate run.json: it is refused, and restoring a backup loses nothing."""
        file = self.path / "run.json"
        backup = file.read_bytes()
        file.write_bytes(backup[:cut])
        with pytest.raises(UserError, match="is damaged"):
            Store.open(self.path, IDENTITY)
        file.write_bytes(backup)
        self.disk.settle()
        self.reopen()

    @invariant()
    def what_was_kept_is_there_and_nothing_broken_is(self) -> None:
        for name in NAMES:
            if name in self.kept:
                assert self.store.has(name) == (name not in self.flipped | self.unmarked), name
                if name not in self.flipped | self.unmarked:
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
        assert {n: info.get(n) for n in self.noted} == self.noted

    @invariant()
    def verify_names_exactly_what_is_broken(self) -> None:
        checks = [c for c in verify_run(self.path) if not c.ok and c.name != "finished"]
        assert not any("missing" in checked.wrong for checked in checks)  # files are never removed
        wrong = {c.name.removeprefix("markers/").removesuffix(".json") for c in checks}
        assert self.flipped & {*self.kept} <= wrong
        assert wrong <= self.flipped | self.unmarked | self._overwritten()

    def _overwritten(self) -> set[str]:
        """Files whose replacement may have been cut short by a death."""
        return {name for name, seen in self.unsure.items() if len(seen - {b""}) > 1}

    def _dies(self, call: int | None, data: st.DataObject, work: Callable[[], object]) -> bool:
        """Run `work`, die before call number `call`, perhaps lose power; whether it died."""
        try:
            with self.disk.dying(call):
                work()
        except Died:
            if data.draw(st.booleans(), label="the power too"):
                self._power_cut(data)
            return True
        return False

    def _power_cut(self, data: st.DataObject) -> None:
        self.disk.lose_power(lambda: data.draw(st.booleans(), label="lucky"))
