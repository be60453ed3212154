"""The run folder: written whole or not at all, by many at once, and continued where it stopped.

A file is there when its own marker, markers/<name>.json, is: size and checksum, written last. So
any number of processes may write files of one run. One of them owns the folder: it writes run.json,
which lists every file when the run is finished.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from anchorscope.errors import UserError, user_path
from anchorscope.run_folder.info import COPY, FORMAT, info_text, read_info
from anchorscope.run_folder.links import check_inside
from anchorscope.run_folder.listing import (
    MARKERS,
    Listing,
    checksum,
    derived_files,
    entry_of,
    marker_name,
    read_listing,
    read_marker,
    read_markers,
)
from anchorscope.run_folder.owner import OWNER, Busy, Owner
from anchorscope.run_folder.remote import RUN, Remote, remote_of
from anchorscope.run_folder.whole import (
    Save,
    Written,
    create_whole,
    is_partial,
    on_disk,
    remove_partials,
    sync_folders,
    write_whole,
)


class Store:
    """One run folder on disk.

    With `info` it is a worker's: what run.json said when the run was handed out, and what the
    worker notes stays with it.
    """

    def __init__(
        self, path: Path, *, info: dict[str, Any] | None = None, remote: Remote | None = None
    ) -> None:
        self.path, self.remote = path, remote
        self._owner: Owner | None = None
        self._whole: dict[str, tuple[int, int]] = {}  # size and time of files seen to be right
        self._fresh: list[Path] | None = None  # folders made for a run that was begun here
        self._info = info
        self._listed = read_listing(path, self._info).all
        # Of what was there before: a file that is not written from here on keeps its old checksum.
        self._before = {p: _stamp(p) for p in derived_files(path)}

    @classmethod
    def open(cls, path: str | Path, identity: dict[str, Any]) -> Store:
        """The folder for a run of this identity; another run's folder is refused."""
        remote = remote_of(path)
        path = user_path(path) if remote is None else remote.local
        if remote is not None:
            remote.begin()
        before = _begun(path)
        if before is not None:
            _refuse_other(path, before.get("identity", {}), identity)
            if before.get("format", 1) < FORMAT:
                raise UserError(
                    f"{path} was begun by an earlier version, which cut the flow from other tokens "
                    "of a question. It is read as it is, and not continued: choose another --out."
                )
        if path.is_dir():
            sync_folders(path)
        store = cls(path, remote=remote)
        if before is None:
            store._begin({"identity": identity, "finished": False, "format": FORMAT})
        return store

    @contextmanager
    def owned(self, *, withdraw: bool = False) -> Iterator[None]:
        """Until the block ends run.json is written by this process; a second owner is refused.

        With `withdraw` a run that was begun here and fails before it has a file leaves no folder.
        """
        owner, done = Owner(self.path, remote=self.remote), False
        owner.__enter__()
        try:
            self._owner = owner
            remove_partials(self.path)
            yield
            done = True
        finally:
            self._owner = None
            if withdraw and not done and owner.still():
                self._withdraw()
            owner.__exit__(None, None, None)
            if self._fresh is not None and not done:
                _remove_empty([self.path, *self._fresh])

    @property
    def info(self) -> dict[str, Any]:
        return dict(self._info) if self._info is not None else read_info(self.path) or {}

    def save_info(self, changes: dict[str, Any]) -> None:
        """Merges `changes` into run.json; that of a finished run lists its files."""
        if self._info is not None:
            self._info |= changes
            return
        if self._owner is not None:
            self._owner.check()
        if changes.get("finished"):
            self.send_rest()
            changes = {**changes, "format": FORMAT, **self._listing().as_info()}
        self._put_info({**self.info, **changes})

    def write(self, name: str, save: Save) -> None:
        """Saves one file for good: `save` writes it to the binary file it is given."""
        with on_disk(self.path):
            self._mark(name, write_whole(self.file(name), save))
        self._listed[name] = read_marker(self._marker(name)) or {}
        self._whole[name] = self._stamp(name)

    def create(self, name: str, data: bytes) -> None:
        """Saves a file unless there is one: of several writers the first is heard."""
        with on_disk(self.path):
            if create_whole(self.file(name), data):
                self._mark(name, Written(len(data), hashlib.sha256(data).hexdigest()))

    def has(self, name: str) -> bool:
        """Whether the file is marked, there, and unchanged since it was written."""
        entry = self._entry(name)
        if entry is None or not self.file(name).is_file():
            return False
        stamp = self._stamp(name)
        if self._whole.get(name) != stamp:
            if stamp[0] != entry["bytes"] or checksum(self.file(name)) != entry["sha256"]:
                return False
            self._whole[name] = stamp
        return stamp[0] == entry["bytes"]

    def relist(self) -> None:
        """Lists what was added to the folder of a finished run since it was opened.

        Markers that were lost and the copy of run.json are written again. Where another process
        owns the folder, that one lists it at its end.
        """
        if self.info.get("finished"):
            with suppress(Busy), self.owned():
                self.save_info({"finished": True})

    def file(self, name: str) -> Path:
        return self.path / name

    def fetch(self) -> None:
        """Sees what others put under the run's URL, where it has one."""
        if self.remote is not None:
            self.remote.fetch()

    def send_rest(self) -> None:
        """Shows the others what was not written through here, where the run has a URL."""
        if self.remote is not None:
            self.remote.send_rest()

    def _begin(self, info: dict[str, Any]) -> None:
        """Writes the first run.json; of several processes that begin at once one does."""
        if self._info is not None:
            self._info |= info
            return
        fresh = _missing_folders(self.path)
        with on_disk(self.path):
            made = create_whole(self.path / RUN, info_text(info))
        if made:
            self._fresh = fresh
            if self.remote is not None:
                self.remote.send(RUN)
        else:
            _refuse_other(self.path, self.info.get("identity", {}), info["identity"])

    def _entry(self, name: str) -> dict[str, Any] | None:
        """What was said of a file last: by its marker, else by the manifest."""
        entry = read_marker(self._marker(name))
        if entry is not None:
            self._listed[name] = entry
        return self._listed.get(name)

    def _mark(self, name: str, written: Written) -> None:
        if self.remote is not None:
            self.remote.send(name)
        self._put(f"{MARKERS}/{name}.json", _marker_text({"name": name, **written._asdict()}))

    def _put(self, name: str, text: bytes) -> None:
        """Writes a file that has no marker: markers, run.json, the manifest."""
        with on_disk(self.path):
            write_whole(self.path / name, lambda file: file.write(text))
        if self.remote is not None:
            self.remote.send(name)

    def _put_info(self, info: dict[str, Any]) -> None:
        text = info_text(info)
        self._put(RUN, text)
        self._put(COPY, text)

    def _withdraw(self) -> None:
        """Takes back a beginning that nothing came of."""
        if self._fresh is None or self._info is not None or any(self.path.glob(f"{MARKERS}/**/*")):
            return
        for name in (RUN, COPY):
            self.file(name).unlink(missing_ok=True)
            if self.remote is not None:
                with suppress(UserError):
                    self.remote.remove(name)

    def _marker(self, name: str) -> Path:
        return self.path / MARKERS / f"{name}.json"

    def _stamp(self, name: str) -> tuple[int, int]:
        return _stamp(self.file(name))

    def _listing(self) -> Listing:
        """Every file that is done, by any process; a marker that was lost is written again."""
        before, marked = read_listing(self.path), read_markers(self.path)
        files = {n: of for n, of in before.files.items() if self.file(n).is_file()} | marked
        for name in sorted(files.keys() - marked.keys()):
            self._put(marker_name(name), _marker_text(files[name]))
        derived: dict[str, dict[str, Any]] = {}
        for file in derived_files(self.path):
            name = file.relative_to(self.path).as_posix()
            kept = self._before.get(file) == _stamp(file) and name in before.derived
            if name not in files:
                derived[name] = before.derived[name] if kept else entry_of(self.path, name)
        return Listing(files, derived)


def _stamp(file: Path) -> tuple[int, int]:
    """Size and time of a file: what changes when it is written."""
    facts = file.stat()
    return facts.st_size, facts.st_mtime_ns


def _marker_text(entry: dict[str, Any]) -> bytes:
    return json.dumps({name: entry[name] for name in ("name", "bytes", "sha256")}).encode()


def _begun(path: Path) -> dict[str, Any] | None:
    """What run.json says; None in an empty place, an error in one that is not a run's."""
    check_inside(path)
    info = read_info(path)
    if info is None and path.exists():
        names = [p.name for p in path.iterdir()] if path.is_dir() else [path.name]
        if RUN in names and path.is_dir():
            return read_info(path)  # somebody began it just now
        if [n for n in names if n != OWNER and not is_partial(n)]:
            raise UserError(
                f"{path} exists and is not a run of anchorscope. Choose another --out, or empty it."
            )
    return info


def _missing_folders(path: Path) -> list[Path]:
    """The folders above a path that are not there yet, the innermost first."""
    return [folder for folder in path.absolute().parents if not folder.exists()]


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # somebody else put something there
            folder.rmdir()


def _refuse_other(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    names = sorted({*before, *now})
    other = [name for name in names if before.get(name) != now.get(name)]
    if other:
        differ = "; ".join(f"{n}: {before.get(n)!r} there, {now.get(n)!r} asked" for n in other)
        raise UserError(
            f"{path} holds another run ({differ}). Give the same options to continue it, "
            "or choose another --out."
        )
