"""Write a run folder atomically, from several processes at once, and continue a stopped run.

A file counts as written when its own marker, markers/<name>.json, exists: size and checksum,
written last. So any number of processes may write files of one run. One of them owns the folder: it
writes run.json, which lists every file when the run is finished. The operating system holds the
owner's lock, on NFS too, and drops it when the process ends; `owner.json` names that process.
"""

from __future__ import annotations

import json
import shutil
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
    MARKERS,
    OWNER,
    REMAINING,
    RUN,
    STATES,
    Busy,
    info_text,
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

_REMOVED = f".{STATES}.removed"


class Store:
    """A run folder: write its files, and check which of them exist.

    With `info`, the content of run.json from the owner, it is a worker's store: `save_info` then
    changes this object alone. With a `prefix` it is a folder inside the run folder, whose markers
    are beside the run's own.
    """

    def __init__(
        self, root: Path, *, info: dict[str, Any] | None = None, remote: Remote | None = None,
        prefix: str = "",
    ) -> None:  # fmt: skip
        self.root, self.path, self.prefix, self.remote = root, root / prefix, prefix, remote
        self._info = info
        self._made: list[Path] = []  # folders that this process made for the run
        self._seen: dict[str, tuple[int, int]] = {}  # size and time of files that were checked
        self._listed = read_listing(root, info)

    @classmethod
    def open(cls, path: str | Path, identity: dict[str, Any]) -> Store:
        """Open or begin the folder for a run of this identity; refuse another run's folder."""
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

        With `withdraw`, a new run that fails before its first file leaves no folder.
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
                remove_partials(self.root)  # of workers that were killed meanwhile
        finally:
            for folder in self._made:
                with suppress(OSError):  # not empty, as after every successful run
                    folder.rmdir()

    def inside(self, folder: str) -> Store:
        """The store of a folder inside the run folder; a worker's store where this one is."""
        return Store(self.root, info=self._info, remote=self.remote, prefix=f"{folder}/")

    def borrowed(self) -> Store:
        """The same store for a process that does not own the folder, with run.json as it is now."""
        return Store(self.root, info=self.info, remote=self.remote, prefix=self.prefix)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a store that does not own the folder."""
        place = str(self.root.absolute()) if self.remote is None else self.remote.url
        return _borrowed_at, (place, self.info, self.prefix)

    @property
    def info(self) -> dict[str, Any]:
        return dict(self._info) if self._info is not None else read_info(self.root) or {}

    def save_info(self, changes: dict[str, Any]) -> None:
        """Merge `changes` into run.json; when they finish the run, also list its files."""
        if self._info is not None:
            self._info |= changes
            return
        if changes.get("finished"):
            files = {name: f"{w.bytes} {w.sha256}" for name, w in sorted(self._marked().items())}
            changes = {**changes, "files": files}
        self._put(RUN, info_text({**self.info, **changes}))

    def write(self, name: str, save: Save) -> None:
        """Write a file atomically and mark it; `save` writes its content to an open binary file."""
        with disk_errors(self.root):
            written = save_atomic(self.file(name), save)
        self._mark(name, written)

    def add(self, *names: str) -> None:
        """Mark files, or all files of folders, that were written by other means."""
        for name in names:
            place = self.file(name)
            for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
                if file.is_file() and not is_partial(file.name):
                    self._mark(file.relative_to(self.path).as_posix(), describe(file))

    def has(self, name: str) -> bool:
        """Whether the file exists, is marked, and is unchanged since it was written."""
        entry = read_marker(self.root, self.prefix + name) or self._listed.get(self.prefix + name)
        if entry is None or not self.file(name).is_file():
            return False
        stamp = _stamp(self.file(name))
        if self._seen.get(name) != stamp:
            if stamp[0] != entry.bytes or describe(self.file(name)) != entry:
                return False
            self._seen[name] = stamp
        return stamp[0] == entry.bytes

    def has_states(self, *, remaining: bool) -> bool:
        """Whether there are states, also of the `remaining` questions."""
        folders = (self.path, self.path / REMAINING) if remaining else (self.path,)
        return all((folder / STATES).is_dir() for folder in folders)

    def remove_states(self) -> None:
        """Remove the states of the run, and of the questions in folders inside it.

        A folder is renamed first: of states half of which are gone, half would count as damaged.
        """
        for folder in sorted(self.root.rglob(STATES)):
            name = folder.relative_to(self.root)
            if folder.is_dir() and MARKERS not in name.parts:
                if self.remote is not None:
                    self.remote.remove_folder(name.as_posix())
                folder.rename(folder.with_name(_REMOVED))
        for folder in self.root.rglob(_REMOVED):
            shutil.rmtree(folder)

    def relist(self) -> None:
        """Update a finished run's list of files, and restore lost markers.

        Where another process owns the folder, that process updates the list when it ends.
        """
        if self.info.get("finished"):
            with suppress(Busy), self.owned():
                self.save_info({"finished": True})

    def file(self, name: str) -> Path:
        return self.path / name

    def fetch(self) -> None:
        """Download what other processes wrote under the run's URL, if it has one."""
        if self.remote is not None:
            self.remote.fetch()

    def _mark(self, name: str, written: Written) -> None:
        """Write the marker of an existing file; `name` is relative to `path`."""
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
        """All finished files, of any process; lost markers of listed files are restored."""
        listed, marked = read_listing(self.root), read_markers(self.root)
        for name in sorted(listed.keys() - marked.keys()):
            if (self.root / name).is_file():
                self._put(marker_name(name), marker_text(name, listed[name]))
                marked[name] = listed[name]
        return marked


def _borrowed_at(place: str, info: dict[str, Any], prefix: str) -> Store:
    """Unpickle a store, in a process that does not own the folder."""
    remote = remote_of(place)
    root = Path(place) if remote is None else remote.local
    return Store(root, info=info, remote=remote, prefix=prefix)


def _stamp(file: Path) -> tuple[int, int]:
    """Size and modification time of a file, to detect that it was rewritten."""
    facts = file.stat()
    return facts.st_size, facts.st_mtime_ns


def _require_empty(path: Path) -> None:
    """Raise a UserError where a path holds anything but the first files of a new run."""
    if path.exists():
        names = [p.name for p in path.iterdir()] if path.is_dir() else [path.name]
        if RUN not in names and [n for n in names if n not in (OWNER, LOCK) and not is_partial(n)]:
            raise UserError(
                f"{path} exists and is not a run of anchorscope. Choose another --out, or empty it."
            )


def _refuse_other(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise a UserError that names the fields in which two run identities differ."""
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
            owner = None
            with suppress(OSError, ValueError):
                owner = json.loads((folder / OWNER).read_text(encoding="utf-8"))
            raise Busy.by(folder, owner) from None
    try:
        write_atomic(folder / OWNER, json.dumps(this_owner(), indent=1))
        yield
    finally:
        # Removed while the lock is held: a process that waits for it notices and starts over.
        for name in (OWNER, LOCK):
            with suppress(OSError):
                (folder / name).unlink()
        lock.release()
