"""Write files atomically, refuse links that lead out of a folder, and check free space.

After a kill or a power cut an atomic file is complete or absent: it is written under a name that no
other writer uses, synced and renamed, and then its folder is synced. A reader finds the old file or
the new one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from anchorscope.errors import UserError, in_a_line

Save = Callable[[Any], object]  # writes to an open binary file
GB = 1e9
_PARTIAL = ".partial"
_IDLE = 3600  # seconds without a write after which a partial file counts as abandoned


class Written(NamedTuple):
    """Size and SHA-256 of a file when it was written."""

    bytes: int
    sha256: str


def write_atomic(target: Path, data: bytes | str) -> Path:
    """Write bytes or text to a file atomically; a UserError where it cannot be written."""
    content = data.encode() if isinstance(data, str) else data
    with disk_errors(target.parent):
        save_atomic(target, lambda file: file.write(content))
    return target


def save_atomic(target: Path, save: Save) -> Written:
    """Write a file with `save`, in place of an earlier one; returns its size and checksum."""
    with _partial(target, save) as (partial, written):
        partial.replace(target)
    sync_folder(target.parent)
    return written


def create_atomic(target: Path, data: bytes) -> Written | None:
    """Write a new file; returns its size and checksum, None where another writer was first."""
    with _partial(target, lambda file: file.write(data)) as (partial, written):
        try:
            os.link(partial, target)
        except OSError:  # it is there, or the disk has no links: then the last of two writers wins
            if target.exists():
                return None
            partial.replace(target)
    sync_folder(target.parent)
    return written


@contextmanager
def _partial(target: Path, save: Save) -> Iterator[tuple[Path, Written]]:
    """Write and sync a file under a temporary name; remove it at the end unless it was renamed."""
    _make_folder(target.parent)
    name = f".{target.name}.@{_machine()}~{os.getpid()}~{os.urandom(4).hex()}{_PARTIAL}"
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
    """Compute the size and SHA-256 of a file."""
    digest, size = hashlib.sha256(), 0
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
            size += len(block)
    return Written(size, digest.hexdigest())


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to the disk (fsync)."""
    with suppress(OSError):  # not every system can
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_folders(folder: Path) -> None:
    """Sync the entries of a folder, its parent and all folders below it to the disk.

    A process that is killed between making a folder and syncing its parent leaves a folder that the
    next process writes to, and that a power cut would remove with all its files.
    """
    for place in (folder.parent, folder, *(p for p in folder.rglob("*") if p.is_dir())):
        sync_folder(place)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def is_partial(name: str) -> bool:
    """Whether a file of this name is unfinished: being written, or left by a killed writer."""
    return name.startswith(".") and name.endswith(_PARTIAL)


def remove_partials(folder: Path) -> None:
    """Remove partial files of this machine's killed writers, and any not written to for an hour."""
    for path in folder.rglob(f".*{_PARTIAL}"):
        host, pid, *_ = [*path.name.rpartition("@")[2].split("~"), ""]
        dead = host == _machine() and pid.isdigit() and not psutil.pid_exists(int(pid))
        with suppress(OSError):
            if dead or time.time() - path.stat().st_mtime > _IDLE:
                path.unlink()


def _machine() -> str:
    """The machine's name, namespace of process ids, and boot, for which process ids are unique."""
    namespace, boot = 0, ""
    with suppress(OSError):
        namespace = os.stat("/proc/self/ns/pid").st_ino
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{re.sub(r'[^A-Za-z0-9.-]', '_', socket.gethostname())}.{namespace}.{boot[:12]}"


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a UserError about this path."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}. What was finished is "
            "kept: make room or choose another --out, and run the same command again."
        ) from error


def unsafe_entries(folder: Path, names: Iterable[str] | None = None) -> Iterator[tuple[Path, str]]:
    """Find links out of a folder, pipes and devices, each with the reason not to open it.

    A link would let the author of a folder choose which file of its reader is copied into a report
    or overwritten; a pipe blocks its reader, and /dev/zero never ends. The folder itself may be a
    link. With `names`, only these files are examined.
    """
    roots, parent = [folder.resolve()], folder.absolute().parent
    if names is not None and parent.name == "snapshots":
        # The hub's cache keeps the files of a snapshot beside it, as blobs of the same repository.
        roots.append((parent.parent / "blobs").resolve())
    walked = (Path(at, name) for at, dirs, files in os.walk(folder) for name in (*dirs, *files))
    for path in sorted(walked) if names is None else (folder / name for name in names):
        if path.is_symlink():
            target = Path(os.path.realpath(path))  # of a link to itself too
            if not any(target.is_relative_to(root) for root in roots):
                yield path, f"is a link that leads out of the folder, to {in_a_line(target)}"
            elif not target.is_file():
                yield path, "is a link to what is no file"
        elif path.exists() and not (path.is_file() or path.is_dir()):
            yield path, "is a pipe, a socket or a device, and no file"


def refuse_unsafe(folder: Path, names: Iterable[str] | None = None) -> None:
    """Raise a UserError for the first entry of `unsafe_entries`, before any file is opened."""
    for path, reason in unsafe_entries(folder, names):
        raise UserError(
            f"'{in_a_line(path)}' {reason}: it is not opened. Put a copy of what is meant in its "
            "place, or remove it; a folder may be linked as a whole."
        )


def disk_bytes(
    learnt: int, remaining: int, blocks: int, width: int, passes: int, *, all_states: bool
) -> float:
    """Estimate the bytes of a folder while its run goes on; states are in half precision.

    Of the `remaining` questions there are readings, by 3 probes under 5 passes, and states where
    all are kept.
    """
    questions = learnt + remaining if all_states else learnt
    states = questions * blocks * width * 2 * passes
    pathways = questions * blocks * 2 * 40  # rows of pathways.parquet, in two modes
    samples = questions * 2000  # rows of samples.parquet and answers/
    further = remaining * (blocks * 3 * 5 * 4 + 1500)  # remaining/readings and remaining/answers
    return float(states + pathways + samples + further + 1.2e6)  # report, figures and tables


def check_writable(folder: Path) -> None:
    """Raise a UserError where a folder cannot be made or written to, without making it."""
    place = nearest_existing(folder)
    if not place.is_dir():
        raise UserError(f"'{place}' is a file, so '{folder}' cannot be a folder. Choose another.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError(f"'{place}' cannot be written to. Choose another --out.")


def nearest_existing(folder: Path) -> Path:
    """The folder itself, or the nearest above it that exists."""
    path = folder.expanduser().absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def check_room(folder: Path, needed: float) -> str:
    """Check the free space for a run; return a sentence about it, or raise a UserError.

    What an interrupted run has already written counts as free.
    """
    written = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    free, more = shutil.disk_usage(nearest_existing(folder)).free, max(0.0, needed - written)
    if more > free:
        raise UserError(
            f"{folder} needs about {more / GB:.1f} GB more, and {free / GB:.1f} GB are free there. "
            "Choose another --out, or ask fewer questions (--limit)."
        )
    return f"{folder} will take about {needed / GB:.2f} GB"
