"""The run folder: written whole or not at all, by many at once, and continued where it stopped.

A file is there when its own marker, markers/<name>.json, is: size and checksum, written last. So
any number of processes may write files of one run. One of them owns the folder: it writes run.json,
which lists every file when the run is finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from anchorscope.errors import UserError, user_path
from anchorscope.run_folder.info import FORMAT, RUN, info_text, read_info
from anchorscope.run_folder.links import check_inside
from anchorscope.run_folder.listing import (
    MARKERS,
    Entries,
    Listing,
    derived_files,
    marked_names,
    marker_name,
    marker_text,
    read_listing,
    read_marker,
    read_markers,
)
from anchorscope.run_folder.owner import LOCK, OWNER, Busy, owning
from anchorscope.run_folder.remote import Remote, remote_of
from anchorscope.run_folder.whole import (
    Save,
    Written,
    create_whole,
    describe,
    is_partial,
    on_disk,
    remove_partials,
    sync_folders,
    write_whole,
)


class Store:
    """One run folder on disk.

    With `info` it is a worker's: `info` is run.json as the owner sent it, and what the worker notes
    stays in its memory.
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
        """The folder for a run of this identity; another run's folder is refused."""
        remote = remote_of(path)
        path = user_path(path) if remote is None else remote.local
        if remote is not None:
            remote.begin()
        check_inside(path)
        made: list[Path] = []
        if read_info(path) is None:
            _require_empty(path)
            missing = [p for p in (path, *path.absolute().parents) if not p.exists()]
            first = {"identity": identity, "finished": False, "format": FORMAT}
            with on_disk(path):
                # Of several processes that begin the run at once, one writes run.json.
                if create_whole(path / RUN, info_text(first)) is not None:
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
        """Write run.json from this process alone until the block ends; a second owner is refused.

        With `withdraw`, a run that was begun here and fails before it has a file leaves no folder.
        """
        try:
            with owning(self.path, self.remote):
                remove_partials(self.path)
                try:
                    yield
                except BaseException:
                    if withdraw and self._made and not marked_names(self.path):
                        self._remove_info()
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
        with on_disk(self.path):
            written = write_whole(self.file(name), save)
        self._mark(name, written)
        self._listed[name] = written
        self._seen[name] = _stamp(self.file(name))

    def create(self, name: str, data: bytes) -> None:
        """Save a file unless it is there: the first of several writers wins."""
        with on_disk(self.path):
            written = create_whole(self.file(name), data)
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
        with on_disk(self.path):
            write_whole(self.file(name), lambda file: file.write(text))
        if self.remote is not None:
            self.remote.send(name)

    def _remove_info(self) -> None:
        self.file(RUN).unlink(missing_ok=True)
        if self.remote is not None:
            with suppress(UserError):
                self.remote.remove(RUN)

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
    names = sorted({*before, *now})
    other = [name for name in names if before.get(name) != now.get(name)]
    if other:
        differ = "; ".join(f"{n}: {before.get(n)!r} there, {now.get(n)!r} asked" for n in other)
        raise UserError(
            f"{path} holds another run ({differ}). Give the same options to continue it, "
            "or choose another --out."
        )
