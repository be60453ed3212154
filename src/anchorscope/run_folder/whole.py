"""Files that are there whole or not at all, under names that no other writer uses.

A file is written under a name of its own, brought to the disk, renamed, and its folder brought to
the disk too: what a reader sees after a power cut is the old file or the new one.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import socket
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
    """What tells a file from every other."""

    bytes: int
    sha256: str


class _Hashing(io.BufferedIOBase):
    """A file that is only written to; its checksum is known when its last byte is."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file, self._digest, self._size = file, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        flat = memoryview(data)
        flat = flat.cast("B") if flat.nbytes else memoryview(b"")
        self._digest.update(flat)
        self._size += self._file.write(flat)
        return flat.nbytes

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        if not self._file.closed:  # Python 3.13 flushes once more when the object goes
            self._file.flush()

    def written(self) -> Written:
        return Written(self._size, self._digest.hexdigest())


def write_whole(target: Path, save: Save) -> Written:
    """The size and checksum of the file that `save` wrote; it replaces one that was there."""
    with _partial(target) as (partial, written):
        size_and_sum = written(save)
        partial.replace(target)
    sync_folder(target.parent)
    return size_and_sum


def put_whole(target: Path, data: bytes | str) -> Path:
    """The file, with these bytes or this text in it; a sentence where the disk refuses them."""
    content = data.encode() if isinstance(data, str) else data
    with on_disk(target.parent):
        write_whole(target, lambda file: file.write(content))
    return target


def create_whole(target: Path, data: bytes) -> bool:
    """Whether the file was made: not where one of that name was there first."""
    with _partial(target) as (partial, written):
        written(lambda file: file.write(data))
        try:
            os.link(partial, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if target.exists():  # a disk without links: two that come at once are not told apart
                return False
            partial.replace(target)
    sync_folder(target.parent)
    return True


@contextmanager
def _partial(target: Path) -> Iterator[tuple[Path, Callable[[Save], Written]]]:
    """A name for the unfinished file, which is gone at the end, and what writes it."""
    _make_folder(target.parent)
    name = f".{target.name}.@{machine()}~{os.getpid()}~{os.urandom(4).hex()}{_PARTIAL}"
    partial = target.with_name(name)

    def written(save: Save) -> Written:
        with partial.open("wb") as raw:
            file = _Hashing(raw)
            save(file)
            raw.flush()
            os.fsync(raw.fileno())
        return file.written()

    try:
        yield partial, written
    finally:
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Brings the names in a folder to the disk."""
    with suppress(OSError):  # not every system can
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_folders(folder: Path) -> None:
    """Brings a folder's name and all names below it to the disk.

    Whoever was killed between making a folder and bringing its name there leaves one that is seen,
    written to, and lost with all that is in it when the power goes.
    """
    for place in (folder.parent, folder, *(p for p in folder.rglob("*") if p.is_dir())):
        sync_folder(place)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def is_partial(name: str) -> bool:
    """Whether a file of this name is one that somebody writes, or was killed over."""
    return name.startswith(".") and name.endswith(_PARTIAL)


def remove_partials(folder: Path) -> None:
    """Removes what writers left behind who were killed: of this machine, or a day ago."""
    partials = list(folder.rglob(f".*{_PARTIAL}"))
    now = time_at(folder) if partials else 0.0
    for path in partials:
        host, pid, *_ = [*path.name.rpartition("@")[2].split("~"), ""]
        here = host == machine() and pid.isdigit() and not psutil.pid_exists(int(pid))
        with suppress(OSError):
            if here or now - path.stat().st_mtime > _DAY:
                path.unlink()


def time_at(folder: Path) -> float:
    """The time as the folder's disk has it: another machine's clock may go otherwise."""
    probe = folder / f".clock.{os.urandom(4).hex()}{_PARTIAL}"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def machine() -> str:
    """The name of this machine since its boot, and of the space its process numbers are from.

    Two machines may have one name: the boot tells them apart. After a boot nothing is known of the
    processes before it, as of those of another machine.
    """
    space, boot = 0, ""
    with suppress(OSError):
        space = os.stat("/proc/self/ns/pid").st_ino
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{re.sub(r'[^A-Za-z0-9.-]', '_', socket.gethostname())}.{space}.{boot[:12]}"


class on_disk:
    """Turns the disk's refusals into a sentence."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise UserError(
                f"{self.path} cannot be written: {error.strerror or error}. What was finished is "
                "kept: make room or choose another --out, and run the same command again."
            ) from error
