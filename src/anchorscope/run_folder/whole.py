"""Atomic files: whole or not there, after a kill and after a power cut.

A file is written under a name that no other writer uses, brought to the disk and renamed, and its
folder is brought to the disk too. A reader finds the old file or the new one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from anchorscope.errors import UserError

Save = Callable[[Any], object]  # writes to the binary file it is given
_DAY = 24 * 3600
_PARTIAL = ".partial"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Written(NamedTuple):
    """Size and SHA-256 of a file as it was written."""

    bytes: int
    sha256: str


def write_atomic(target: Path, data: bytes | str) -> Path:
    """Write these bytes or this text to a file atomically; a UserError where the disk refuses."""
    content = data.encode() if isinstance(data, str) else data
    with on_disk(target.parent):
        write_whole(target, lambda file: file.write(content))
    return target


def write_whole(target: Path, save: Save) -> Written:
    """Size and checksum of the file that `save` wrote; it replaces an earlier one."""
    with _partial(target, save) as (partial, written):
        partial.replace(target)
    sync_folder(target.parent)
    return written


def create_whole(target: Path, data: bytes) -> Written | None:
    """Size and checksum of a new file; None where another writer made it first."""
    with _partial(target, lambda file: file.write(data)) as (partial, written):
        try:
            os.link(partial, target)
        except FileExistsError:
            return None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if target.exists():  # without links, two writers at the same moment go unnoticed
                return None
            partial.replace(target)
    sync_folder(target.parent)
    return written


@contextmanager
def _partial(target: Path, save: Save) -> Iterator[tuple[Path, Written]]:
    """The unfinished file, whole and on the disk; removed at the end unless it was renamed."""
    _make_folder(target.parent)
    name = f".{target.name}.@{machine()}~{os.getpid()}~{os.urandom(4).hex()}{_PARTIAL}"
    partial = target.with_name(name)
    try:
        with partial.open("wb") as file:
            save(file)
            file.flush()
            os.fsync(file.fileno())
        yield partial, describe(partial)
    finally:
        partial.unlink(missing_ok=True)


def describe(file: Path) -> Written:
    """Size and SHA-256 of a file as it is now."""
    digest, size = hashlib.sha256(), 0
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
            size += len(block)
    return Written(size, digest.hexdigest())


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    with suppress(OSError):  # not every system can
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_folders(folder: Path) -> None:
    """Bring a folder's name and all names below it to the disk.

    A process that was killed between making a folder and syncing its name leaves one that is seen,
    written to, and lost with all its files when the power goes.
    """
    for place in (folder.parent, folder, *(p for p in folder.rglob("*") if p.is_dir())):
        sync_folder(place)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def is_partial(name: str) -> bool:
    """Whether a file of this name is unfinished: under way, or left by a killed writer."""
    return name.startswith(".") and name.endswith(_PARTIAL)


def remove_partials(folder: Path) -> None:
    """Remove what killed writers left: those of this machine, or files older than a day."""
    for path in folder.rglob(f".*{_PARTIAL}"):
        host, pid, *_ = [*path.name.rpartition("@")[2].split("~"), ""]
        dead = host == machine() and pid.isdigit() and not psutil.pid_exists(int(pid))
        with suppress(OSError):
            if dead or time.time() - path.stat().st_mtime > _DAY:
                path.unlink()


def machine() -> str:
    """Name of this machine since its boot, and of the namespace its process numbers are from.

    Two machines may share a name: the boot id tells them apart. After a boot nothing is known of
    the processes before it, as of those of another machine.
    """
    namespace, boot = 0, ""
    with suppress(OSError):
        namespace = os.stat("/proc/self/ns/pid").st_ino
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{re.sub(r'[^A-Za-z0-9.-]', '_', socket.gethostname())}.{namespace}.{boot[:12]}"


@contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Turn an error of the disk into a sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}. What was finished is "
            "kept: make room or choose another --out, and run the same command again."
        ) from error
