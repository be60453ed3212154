"""One owner of a run folder at a time: who writes run.json and the merged manifest.

`owner.json` says who it is. An owner of this machine that is no longer alive, or one elsewhere
that gave no sign of life for two minutes, has left the folder to whoever comes next.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from anchorscope.errors import UserError
from anchorscope.run_folder.remote import Remote
from anchorscope.run_folder.whole import create_whole, machine, on_disk

OWNER = "owner.json"
_BEAT, _SILENT = 10.0, 120.0  # seconds between two signs of life, and without any


class Busy(UserError):
    """Somebody else owns the folder."""


class Owner:
    """A folder that is ours until the `with` block ends."""

    def __init__(self, folder: Path, *, remote: Remote | None = None) -> None:
        self.file, self.remote = folder / OWNER, remote
        self.about = {
            "host": machine(),
            "process": os.getpid(),
            "begun": psutil.Process().create_time(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "token": os.urandom(8).hex(),
        }
        self._left = threading.Event()

    def __enter__(self) -> Owner:
        with on_disk(self.file.parent):
            while not create_whole(self.file, json.dumps(self.about, indent=1).encode()):
                other = _read(self.file)
                if other is not None and self._alive(other):
                    raise _busy(str(self.file.parent), other)
                self._remove(other)
        try:
            self._claim()
        except BaseException:
            self.file.unlink(missing_ok=True)
            raise
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.set()
        if self.still():
            self.file.unlink(missing_ok=True)
            if self.remote is not None:
                self.remote.remove(OWNER)

    def still(self) -> bool:
        """Whether nobody took the folder for left."""
        about = _read(self.file)
        return about is not None and about.get("token") == self.about["token"]

    def check(self) -> None:
        """An error where somebody else owns the folder by now."""
        if not self.still():
            raise Busy(
                f"{self.file.parent} was taken over by another process, since this one gave no "
                "sign of life. Let that one finish; what both wrote is kept."
            )

    def _beat(self) -> None:
        while not self._left.wait(_BEAT):
            with suppress(OSError, UserError):
                os.utime(self.file)
                if self.remote is not None:
                    self.remote.put(OWNER, self.about)

    def _claim(self) -> None:
        """Says under the run's URL whose it is; an error where another's sign of life is there."""
        if self.remote is None:
            return
        claim = self.remote.get(OWNER)
        if claim is not None:
            other, age = claim
            if _lives_here(other) if other.get("host") == machine() else age < _SILENT:
                raise _busy(self.remote.url, other)
        self.remote.put(OWNER, self.about)

    def _alive(self, other: dict[str, Any]) -> bool:
        if other.get("host") == machine():
            return _lives_here(other)
        with suppress(OSError):
            return _now_at(self.file.parent) - self.file.stat().st_mtime < _SILENT
        return False

    def _remove(self, stale: dict[str, Any] | None) -> None:
        """Takes the stale file away, and no other that came in its place meanwhile."""
        aside = self.file.with_name(f".{OWNER}.{self.about['token']}")
        with suppress(FileNotFoundError):
            self.file.rename(aside)
            taken = _read(aside)
            if taken is not None and taken != stale:
                with suppress(OSError):
                    os.link(aside, self.file)
            aside.unlink(missing_ok=True)


def _busy(place: str, other: dict[str, Any]) -> Busy:
    return Busy(
        f"{place} is being written by process {other.get('process')} on {other.get('host')}, since "
        f"{other.get('since')}. Wait until it is done, or stop it; the same command then continues."
    )


def _lives_here(other: dict[str, Any]) -> bool:
    """Whether an owner of this machine is alive, and not another process under its number."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(int(other["process"]))
        dead = process.status() == psutil.STATUS_ZOMBIE
        return not dead and abs(process.create_time() - other["begun"]) < 1
    return False


def _read(file: Path) -> dict[str, Any] | None:
    with suppress(OSError, json.JSONDecodeError):
        return json.loads(file.read_text(encoding="utf-8"))
    return None


def _now_at(folder: Path) -> float:
    """The time as the folder's disk has it: another machine's clock may go otherwise."""
    probe = folder / f".clock.{os.urandom(4).hex()}"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)
