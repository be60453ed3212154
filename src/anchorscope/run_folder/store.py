"""The run folder: written whole or not at all, by many at once, and continued where it stopped.

A file counts as written when its own marker, markers/<name>.json, is there: size and checksum,
written last. So any number of processes may write files of one run. One of them owns the folder: it
writes run.json, which lists every file when the run is finished. The operating system holds the
owner's lock, on NFS too, and drops it when the process ends; `owner.json` says which process it is.
An object store has no locks: there the owner renews a claim.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from anchorscope.errors import UserError, user_path
from anchorscope.run_folder.disk import (
    Save,
    Written,
    create_atomic,
    describe,
    disk_errors,
    is_partial,
    machine,
    refuse_unsafe,
    remove_partials,
    save_atomic,
    sync_folders,
    write_atomic,
)
from anchorscope.run_folder.manifest import (
    FORMAT,
    LOCK,
    MARKERS,
    OWNER,
    RUN,
    Entries,
    Listing,
    derived_files,
    info_text,
    marked_names,
    marker_name,
    marker_text,
    read_info,
    read_listing,
    read_marker,
    read_markers,
)
from anchorscope.run_folder.remote import Remote, remote_of

_RENEWED, _EXPIRED = 10.0, 120.0  # seconds: a claim in an object store
_FILES_AT_ONCE = 3  # a checksum and a copy to the disk keep a core busy each


class Busy(UserError):
    """Another process owns the folder."""


class Store:
    """A run folder: write its files, and ask which of them are there.

    With `info`, the content of run.json as the owner sent it, it is a worker's: `save_info` then
    changes this object alone.
    """

    def __init__(
        self, path: Path, *, info: dict[str, Any] | None = None, remote: Remote | None = None
    ) -> None:
        self.path, self.remote = path, remote
        self._info = info
        self._made: list[Path] = []  # folders that this process made for the run
        self._seen: dict[str, tuple[int, int]] = {}  # size and time of files found whole
        self._listed = read_listing(path, info).all
        # A derived file that is not written from here on keeps its listed checksum.
        self._before = {file: _stamp(file) for file in derived_files(path)}

    @classmethod
    def open(cls, path: str | Path, identity: dict[str, Any]) -> Store:
        """Open or begin the folder for a run of this identity; refuse that of another run."""
        remote = remote_of(path)
        path = user_path(path) if remote is None else remote.local
        if remote is not None:
            remote.begin()
        refuse_unsafe(path)
        made: list[Path] = []
        if read_info(path) is None:
            _require_empty(path)
            missing = [p for p in (path, *path.absolute().parents) if not p.exists()]
            first = {"identity": identity, "finished": False, "format": FORMAT}
            with disk_errors(path):
                # Of several processes that begin the run at once, one writes run.json.
                if create_atomic(path / RUN, info_text(first)) is not None:
                    made = missing
                    if remote is not None:
                        remote.send(RUN)
        info = read_info(path) or {}
        _refuse_other(path, info.get("identity", {}), identity)
        if info.get("format", 1) < FORMAT:
            raise UserError(
                f"{path} was begun by an earlier version, which cut the flow from other tokens "
                "of a question. It is read as it is, and not continued: choose another --out."
            )
        sync_folders(path)
        store = cls(path, remote=remote)
        store._made = made
        return store

    @contextmanager
    def owned(self, *, withdraw: bool = False) -> Iterator[None]:
        """Own the folder until the block ends; raise `Busy` where another process does.

        With `withdraw`, a run that was begun here and fails before it has a file leaves no folder.
        """
        try:
            with _lock(self.path), _claim(self.remote):
                remove_partials(self.path)
                try:
                    yield
                except BaseException:
                    if withdraw and self._made and not marked_names(self.path):
                        self.file(RUN).unlink(missing_ok=True)
                        if self.remote is not None:
                            with suppress(UserError):
                                self.remote.remove(RUN)
                    raise
        finally:
            for folder in self._made:
                with suppress(OSError):  # it holds something, as after every run that went well
                    folder.rmdir()

    @property
    def info(self) -> dict[str, Any]:
        return dict(self._info) if self._info is not None else read_info(self.path) or {}

    def save_info(self, changes: dict[str, Any]) -> None:
        """Merge `changes` into run.json; that of a finished run lists its files."""
        if self._info is not None:
            self._info |= changes
            return
        if changes.get("finished"):
            self.send_rest()
            changes = {**changes, "format": FORMAT, **self._listing().as_info()}
        self._put(RUN, info_text({**self.info, **changes}))

    def write(self, name: str, save: Save) -> None:
        """Save one file for good: `save` writes it to the binary file it is given."""
        with disk_errors(self.path):
            written = save_atomic(self.file(name), save)
        self._mark(name, written)
        self._listed[name] = written
        self._seen[name] = _stamp(self.file(name))

    def create(self, name: str, data: bytes) -> None:
        """Save a file unless it is there: the first of several writers wins."""
        with disk_errors(self.path):
            written = create_atomic(self.file(name), data)
        if written is not None:
            self._mark(name, written)

    def has(self, name: str) -> bool:
        """Whether the file is marked, there, and unchanged since it was written."""
        marker = read_marker(self.path, name)
        if marker is not None:
            self._listed[name] = marker
        entry = self._listed.get(name)
        if entry is None or not self.file(name).is_file():
            return False
        stamp = _stamp(self.file(name))
        if self._seen.get(name) != stamp:
            if stamp[0] != entry.bytes or describe(self.file(name)) != entry:
                return False
            self._seen[name] = stamp
        return stamp[0] == entry.bytes

    def relist(self) -> None:
        """List what was added to the folder of a finished run, and write lost markers again.

        Where another process owns the folder, that one lists it at its end.
        """
        if self.info.get("finished"):
            with suppress(Busy), self.owned():
                self.save_info({"finished": True})

    def borrowed(self) -> Store:
        """The same folder for a process that does not own it, with run.json as it is now."""
        return Store(self.path, info=self.info, remote=self.remote)

    def __reduce__(self) -> tuple[Any, ...]:
        place = str(self.path.absolute()) if self.remote is None else self.remote.url
        return _borrowed_at, (place, self.info)

    def file(self, name: str) -> Path:
        return self.path / name

    def fetch(self) -> None:
        """Copy what others put under the run's URL, where it has one."""
        if self.remote is not None:
            self.remote.fetch()

    def send_rest(self) -> None:
        """Send files without a marker to the run's URL, where it has one."""
        if self.remote is not None:
            self.remote.send_rest()

    def _mark(self, name: str, written: Written) -> None:
        if self.remote is not None:
            self.remote.send(name)
        self._put(f"{MARKERS}/{name}.json", marker_text(name, written))

    def _put(self, name: str, text: bytes) -> None:
        """Write a file that has no marker: markers and run.json."""
        with disk_errors(self.path):
            save_atomic(self.file(name), lambda file: file.write(text))
        if self.remote is not None:
            self.remote.send(name)

    def _listing(self) -> Listing:
        """Every file that is done, by any process; a marker that was lost is written again."""
        before, marked = read_listing(self.path), read_markers(self.path)
        files = {n: entry for n, entry in before.files.items() if self.file(n).is_file()} | marked
        for name in sorted(files.keys() - marked.keys()):
            self._put(marker_name(name), marker_text(name, files[name]))
        # What has a marker by now and is not among the files has a torn one: it is not done.
        derived: Entries = {}
        for file in derived_files(self.path):
            name = file.relative_to(self.path).as_posix()
            if name not in files and not self.file(marker_name(name)).exists():
                kept = self._before.get(file) == _stamp(file) and name in before.derived
                derived[name] = before.derived[name] if kept else describe(file)
        return Listing(files, derived)


def _borrowed_at(place: str, info: dict[str, Any]) -> Store:
    """The folder in a process that another one has sent it to."""
    remote = remote_of(place)
    return Store(Path(place) if remote is None else remote.local, info=info, remote=remote)


def _stamp(file: Path) -> tuple[int, int]:
    """Size and time of a file: what changes when it is written."""
    facts = file.stat()
    return facts.st_size, facts.st_mtime_ns


def _require_empty(path: Path) -> None:
    """Raise a UserError where a path holds anything but the traces of a run that just begins."""
    if path.exists():
        names = [p.name for p in path.iterdir()] if path.is_dir() else [path.name]
        if RUN not in names and [n for n in names if n not in (OWNER, LOCK) and not is_partial(n)]:
            raise UserError(
                f"{path} exists and is not a run of anchorscope. Choose another --out, or empty it."
            )


def _refuse_other(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise a UserError where two identities differ, with the fields that do."""
    names = sorted({*before, *now})
    other = [name for name in names if before.get(name) != now.get(name)]
    if other:
        differ = "; ".join(f"{n}: {before.get(n)!r} there, {now.get(n)!r} asked" for n in other)
        raise UserError(
            f"{path} holds another run ({differ}). Give the same options to continue it, "
            "or choose another --out."
        )


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock until the block ends; raise `Busy` where another process does."""
    lock = FileLock(folder / LOCK, timeout=0)
    with disk_errors(folder):
        try:
            lock.acquire()
        except Timeout:
            raise _busy(str(folder), _read_owner(folder / OWNER)) from None
    try:
        write_atomic(folder / OWNER, json.dumps(_owner(), indent=1))
        yield
    finally:
        # The lock's file goes while the lock is held: who waits for it sees that and starts over.
        for name in (OWNER, LOCK):
            with suppress(OSError):
                (folder / name).unlink()
        lock.release()


@contextmanager
def _claim(remote: Remote | None) -> Iterator[None]:
    """Claim a run's URL until the block ends; a claim that is not renewed for long expires."""
    if remote is None:
        yield
        return
    claim, (other, age) = {**_owner(), "copy": str(remote.local)}, remote.get(OWNER)
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


def _owner() -> dict[str, Any]:
    return {"process": os.getpid(), "host": machine(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def _read_owner(file: Path) -> dict[str, Any]:
    """The content of owner.json; empty where it is missing or makes no sense."""
    with suppress(OSError, ValueError):
        owner = json.loads(file.read_text(encoding="utf-8"))
        return owner if isinstance(owner, dict) else {}
    return {}


def _busy(place: str, owner: Mapping[str, Any]) -> Busy:
    process, host, since = (owner.get(name, "unknown") for name in ("process", "host", "since"))
    return Busy(
        f"{place} is being written by process {process} on {host}, since {since}. Wait until it is "
        "done, or stop it; the same command then continues."
    )


class Writer:
    """Write files in background threads: groups in order, the files of a group at the same time.

    An error is raised at the next `wait`.
    """

    def __init__(self) -> None:
        self._groups = ThreadPoolExecutor(1, "writer")
        self._files = ThreadPoolExecutor(_FILES_AT_ONCE, "files")
        self._waiting: list[Future[object]] = []
        self._failed = False

    def submit(self, *tasks: Callable[[], object]) -> None:
        """Queue tasks that may run at the same time, after all that were queued before."""
        self._waiting.append(self._groups.submit(self._run, tasks))

    def wait(self) -> None:
        """Wait until everything is done; raise the first error."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.result()

    def close(self) -> None:
        """Wait for everything, and end the threads."""
        try:
            self.wait()
        finally:
            self._groups.shutdown(cancel_futures=True)
            self._files.shutdown()

    def _run(self, tasks: Sequence[Callable[[], object]]) -> None:
        """Run a group unless an earlier one failed: a later file may vouch for earlier ones."""
        if self._failed:
            return
        futures = [self._files.submit(task) for task in tasks]
        wait(futures)
        self._failed = any(future.exception() for future in futures)
        for future in futures:
            future.result()
