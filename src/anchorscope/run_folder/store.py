"""The run folder: written whole or not at all, by many at once, and continued where it stopped.

A file counts as written when its own marker, markers/<name>.json, is there: size and checksum,
written last. So any number of processes may write files of one run. One of them owns the folder: it
writes run.json, which lists every file when the run is finished. The operating system holds the
owner's lock, on NFS too, and drops it when the process ends; `owner.json` says which process it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
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
    refuse_unsafe,
    remove_partials,
    save_atomic,
    sync_folders,
    write_atomic,
)
from anchorscope.run_folder.manifest import (
    FORMAT,
    LOCK,
    OWNER,
    RUN,
    Busy,
    info_text,
    listing_info,
    marked_names,
    marker_name,
    marker_text,
    read_info,
    read_listing,
    read_marker,
    read_markers,
    this_owner,
)
from anchorscope.run_folder.remote import Remote, remote_of


class Store:
    """A run folder: write its files, and ask which of them are there.

    With `info`, the content of run.json as the owner sent it, it is a worker's: `save_info` then
    changes this object alone. With a `prefix` it holds the files of a folder in the run folder,
    whose markers are beside the run's own.
    """

    def __init__(
        self, root: Path, *, info: dict[str, Any] | None = None, remote: Remote | None = None,
        prefix: str = "",
    ) -> None:  # fmt: skip
        self.root, self.path, self.prefix, self.remote = root, root / prefix, prefix, remote
        self._info = info
        self._made: list[Path] = []  # folders that this process made for the run
        self._seen: dict[str, tuple[int, int]] = {}  # size and time of files found whole
        self._listed = read_listing(root, info)

    @classmethod
    def open(cls, path: str | Path, identity: dict[str, Any]) -> Store:
        """Open or begin the folder for a run of this identity; refuse that of another run."""
        remote = remote_of(path)
        path = user_path(path) if remote is None else remote.local
        if remote is not None:
            remote.begin()
        refuse_unsafe(path)
        missing = [p for p in (path, *path.absolute().parents) if not p.exists()]
        begun = False
        if read_info(path) is None:
            _require_empty(path)
            first = {"identity": identity, "finished": False, "format": FORMAT}
            with disk_errors(path):
                # Of several processes that begin the run at once, one writes run.json.
                begun = create_atomic(path / RUN, info_text(first)) is not None
            if begun and remote is not None:
                remote.send(RUN)
        _refuse_other(path, (read_info(path) or {}).get("identity", {}), identity)
        sync_folders(path)
        store = cls(path, remote=remote)
        store._made = missing if begun else []
        return store

    @contextmanager
    def owned(self, *, withdraw: bool = False) -> Iterator[None]:
        """Own the folder until the block ends; raise `Busy` where another process does.

        With `withdraw`, a run that was begun here and fails before it has a file leaves no folder.
        """
        claim = nullcontext() if self.remote is None else self.remote.claimed()
        try:
            with _lock(self.root), claim:
                remove_partials(self.root)
                try:
                    yield
                except BaseException:
                    if withdraw and self._made and not marked_names(self.root):
                        (self.root / RUN).unlink(missing_ok=True)
                        if self.remote is not None:
                            with suppress(UserError):
                                self.remote.remove(RUN)
                    raise
        finally:
            for folder in self._made:
                with suppress(OSError):  # it holds something, as after every run that went well
                    folder.rmdir()

    def inside(self, folder: str) -> Store:
        """The files of a folder in the run folder; a worker's where this one is."""
        return Store(self.root, info=self._info, remote=self.remote, prefix=f"{folder}/")

    def borrowed(self) -> Store:
        """The same folder for a process that does not own it, with run.json as it is now."""
        return Store(self.root, info=self.info, remote=self.remote, prefix=self.prefix)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process that gets this store does not own the folder."""
        place = str(self.root.absolute()) if self.remote is None else self.remote.url
        return _borrowed_at, (place, self.info, self.prefix)

    @property
    def info(self) -> dict[str, Any]:
        return dict(self._info) if self._info is not None else read_info(self.root) or {}

    def save_info(self, changes: dict[str, Any]) -> None:
        """Merge `changes` into run.json; that of a finished run lists its files."""
        if self._info is not None:
            self._info |= changes
            return
        if changes.get("finished"):
            changes = {**changes, **listing_info(self._marked())}
        self._put(RUN, info_text({**self.info, **changes}))

    def write(self, name: str, save: Save) -> None:
        """Save one file for good: `save` writes it to the binary file it is given."""
        with disk_errors(self.root):
            written = save_atomic(self.file(name), save)
        self._mark(name, written)

    def create(self, name: str, data: bytes) -> None:
        """Save a file unless it is there: the first of several writers wins."""
        with disk_errors(self.root):
            written = create_atomic(self.file(name), data)
        if written is not None:
            self._mark(name, written)

    def add(self, *names: str) -> None:
        """Mark files, or all files of folders, that were written by other means."""
        for name in names:
            place = self.file(name)
            for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
                if file.is_file() and not is_partial(file.name):
                    self._mark(file.relative_to(self.path).as_posix(), describe(file))

    def has(self, name: str) -> bool:
        """Whether the file is marked, there, and unchanged since it was written."""
        entry = read_marker(self.root, self.prefix + name) or self._listed.get(self.prefix + name)
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

    def file(self, name: str) -> Path:
        return self.path / name

    def fetch(self) -> None:
        """Copy what others put under the run's URL, where it has one."""
        if self.remote is not None:
            self.remote.fetch()

    def _mark(self, name: str, written: Written) -> None:
        """Write the marker of a file that is there; `name` is inside `path`."""
        self._listed[self.prefix + name], self._seen[name] = written, _stamp(self.file(name))
        if self.remote is not None:
            self.remote.send(self.prefix + name)
        self._put(marker_name(self.prefix + name), marker_text(self.prefix + name, written))

    def _put(self, name: str, text: bytes) -> None:
        """Write a file that has no marker: markers and run.json."""
        write_atomic(self.root / name, text)
        if self.remote is not None:
            self.remote.send(name)

    def _marked(self) -> dict[str, Written]:
        """Every file that is done, by any process; the marker of a listed one is written again."""
        listed, marked = read_listing(self.root), read_markers(self.root)
        for name in sorted(listed.keys() - marked.keys()):
            if (self.root / name).is_file():
                self._put(marker_name(name), marker_text(name, listed[name]))
                marked[name] = listed[name]
        return marked


def _borrowed_at(place: str, info: dict[str, Any], prefix: str) -> Store:
    """The folder in a process that another one has sent it to."""
    remote = remote_of(place)
    root = Path(place) if remote is None else remote.local
    return Store(root, info=info, remote=remote, prefix=prefix)


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
    other = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
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
            raise Busy.by(folder, _read_owner(folder / OWNER)) from None
    try:
        write_atomic(folder / OWNER, json.dumps(this_owner(), indent=1))
        yield
    finally:
        # The lock's file goes while the lock is held: who waits for it sees that and starts over.
        for name in (OWNER, LOCK):
            with suppress(OSError):
                (folder / name).unlink()
        lock.release()


def _read_owner(file: Path) -> Any:
    """The content of owner.json; None where it is missing or makes no sense."""
    with suppress(OSError, ValueError):
        return json.loads(file.read_text(encoding="utf-8"))
