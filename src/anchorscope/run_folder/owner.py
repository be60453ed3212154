"""One owner of a run folder at a time: the process that writes run.json.

The operating system holds the owner's lock, on NFS too, and drops it when the process ends.
`owner.json` says whose it is. An object store has no locks: there the owner renews a claim.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from anchorscope.errors import UserError
from anchorscope.run_folder.remote import Remote
from anchorscope.run_folder.whole import machine, on_disk, write_atomic

OWNER, LOCK = "owner.json", "owner.lock"
_RENEWED, _EXPIRED = 10.0, 120.0  # seconds: a claim in an object store


class Busy(UserError):
    """Another process owns the folder."""


def _busy(place: str, owner: Mapping[str, Any]) -> Busy:
    process, host, since = (owner.get(name, "unknown") for name in ("process", "host", "since"))
    return Busy(
        f"{place} is being written by process {process} on {host}, since {since}. Wait until it is "
        "done, or stop it; the same command then continues."
    )


@contextmanager
def owning(folder: Path, remote: Remote | None) -> Iterator[None]:
    """Own the folder until the block ends; raise `Busy` where another process does."""
    owner = {"process": os.getpid(), "host": machine(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    lock = FileLock(folder / LOCK, timeout=0)
    with on_disk(folder):
        try:
            lock.acquire()
        except Timeout:
            raise _busy(str(folder), _read(folder / OWNER)) from None
    try:
        write_atomic(folder / OWNER, json.dumps(owner, indent=1))
        with nullcontext() if remote is None else _claimed(remote, owner):
            yield
    finally:
        # The lock's file goes while the lock is held: who waits for it sees that and starts over.
        for name in (OWNER, LOCK):
            with suppress(OSError):
                (folder / name).unlink()
        lock.release()


@contextmanager
def _claimed(remote: Remote, owner: Mapping[str, Any]) -> Iterator[None]:
    """Claim the run's URL until the block ends; a claim that is not renewed for long expires."""
    claim, (other, age) = {**owner, "copy": str(remote.local)}, remote.get(OWNER)
    # A claim made from this copy is a killed process's: its lock is ours by now.
    ours = all(other.get(name) == claim[name] for name in ("host", "copy"))
    if age < _EXPIRED and not ours:
        raise _busy(remote.url, other)
    remote.put(OWNER, claim)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(_RENEWED):
            with suppress(UserError):  # the next one may reach it
                remote.put(OWNER, claim)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        remote.remove(OWNER)


def _read(file: Path) -> dict[str, Any]:
    """What owner.json says; nothing where it is not there, or makes no sense."""
    with suppress(OSError, ValueError):
        owner = json.loads(file.read_text(encoding="utf-8"))
        return owner if isinstance(owner, dict) else {}
    return {}
