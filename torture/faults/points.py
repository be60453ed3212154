"""Exact points at which a file system is called: counted, and each of them made the last one."""

from __future__ import annotations

import errno
import os
import pathlib
import signal
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from torture.faults.child import Hook

# All that changes a folder by name, and what brings it to the disk.
CALLS = ("fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir", "truncate", "utime")


def counted(file: Path) -> Hook:
    """Writes down every call, one letter each, so that its number is known afterwards."""

    def before(name: str, number: int) -> None:
        with file.open("ab") as out:
            out.write(name[0].encode())

    return lambda: _watch(before=before)


def killed_at(number: int, *, after: bool) -> Hook:
    """SIGKILL at the call of this number: just before it, or just after it."""

    def die(_: str, at: int) -> None:
        if at == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda: _watch(after=die) if after else _watch(before=die)


def refused_from(number: int, *, error: int = errno.ENOSPC) -> Hook:
    """From this call on, whatever would take room on the disk fails with this error."""

    def refuse(name: str, at: int) -> None:
        if at >= number and name in ("fsync", "link", "mkdir"):
            raise OSError(error, os.strerror(error))

    return lambda: _watch(before=refuse)


def refused_at(number: int, *, error: int = errno.EIO) -> Hook:
    """The call of this number fails with this error, and no other."""

    def refuse(_: str, at: int) -> None:
        if at == number:
            raise OSError(error, os.strerror(error))

    return lambda: _watch(before=refuse)


def _watch(
    *,
    before: Callable[[str, int], object] = lambda name, number: None,
    after: Callable[[str, int], object] = lambda name, number: None,
) -> None:
    """Has each call of the operating system's functions told, with its number from 1."""
    lock, count = threading.Lock(), [0]

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def call(*args: Any, **options: Any) -> Any:
            with lock:
                count[0] += 1
                number = count[0]
            before(name, number)
            result = real(*args, **options)
            after(name, number)
            return result

        return call

    # Python 3.10's pathlib took the functions when it was imported, and keeps them here.
    kept = getattr(pathlib, "_normal_accessor", None)
    for name in CALLS:
        told = watched(name, getattr(os, name))
        setattr(os, name, told)
        if hasattr(kept, name):
            setattr(kept, name, told)
