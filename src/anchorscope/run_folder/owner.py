"""One owner of a run folder at a time: the process that writes run.json.

`owner.json` says who it is. An owner of this machine (of its name, and since its last boot) that is
no longer alive, or one elsewhere that gave no sign of life for two minutes, has left the folder to
the next process. Clocks may jump: a process is known by the tick it began at, and silence is
watched before it is believed.
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
from anchorscope.run_folder.whole import create_whole, machine, on_disk, time_at

OWNER = "owner.json"
_BEAT, _SILENT = 10.0, 120.0  # seconds between two signs of life, and without any
_WATCH = 1.5 * _BEAT  # seconds that an owner who seems silent is watched for a sign


class Busy(UserError):
    """Somebody else owns the folder."""


class Owner:
    """A folder that is ours until the `with` block ends."""

    def __init__(self, folder: Path, *, remote: Remote | None = None) -> None:
        self.file, self.remote = folder / OWNER, remote
        self.about = {
            "host": machine(),
            "process": os.getpid(),
            "begun": started(os.getpid()),
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
            last = self.file.stat().st_mtime
            if 0 <= time_at(self.file.parent) - last < _SILENT:
                return True
            # Silent for long, or a clock jumped: then the next sign comes within a beat.
            time.sleep(_WATCH)
            return self.file.stat().st_mtime != last
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
    with suppress(psutil.Error, LookupError, TypeError, ValueError, OverflowError):
        number, begun = int(other["process"]), other["begun"]
        if psutil.Process(number).status() == psutil.STATUS_ZOMBIE:
            return False
        if isinstance(begun, float):  # as earlier versions and systems without /proc have it
            return abs(psutil.Process(number).create_time() - begun) < 1
        return started(number) == begun
    return False


def started(process: int) -> str | float:
    """What tells a process from every other of its number: the tick after the boot it began at.

    The time of day would not do: psutil counts it from the boot, whose time moves with the clock.
    """
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return psutil.Process(process).create_time()


def _read(file: Path) -> dict[str, Any] | None:
    """What an owner's file says; None where it is not there, or torn."""
    with suppress(OSError, ValueError):
        about = json.loads(file.read_text(encoding="utf-8"))
        named = isinstance(about, dict) and {"host", "process", "token"} <= about.keys()
        return about if named else None
    return None
