"""The run folder: written whole or not at all, by many at once, and continued where it stopped.

A file is there when its own marker, markers/<name>.json, is: size and checksum, written last. So
any number of processes may write files of one run. One of them owns the folder: it writes run.json
and manifest.jsonl, the markers merged into one listing. Of several processes that share a model
the first writes, and the others see what they saw when the run was opened and what they would have
written since: so all of them take the same turns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anchorscope import ranks
from anchorscope.errors import UserError
from anchorscope.run_folder.listing import (
    MANIFEST,
    MARKERS,
    checksum,
    read_manifest,
    read_marker,
    read_markers,
)
from anchorscope.run_folder.owner import OWNER, Owner
from anchorscope.run_folder.remote import RUN, Remote, remote_of
from anchorscope.run_folder.whole import (
    Save,
    Written,
    create_whole,
    is_partial,
    on_disk,
    remove_partials,
    write_whole,
)

FORMAT = 2  # 1 had no markers: its manifest was appended to


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
        self._info = info if info is not None or ranks.first() else read_info(path) or {}
        self._listed = read_manifest(path)
        if ranks.count() > 1:
            self._listed |= read_markers(path)

    @classmethod
    def open(cls, path: str | Path, identity: dict[str, Any]) -> Store:
        """The folder for a run of this identity; another run's folder is refused."""
        remote = remote_of(path)
        path = Path(path).expanduser() if remote is None else remote.local
        if remote is not None and ranks.first():
            remote.begin()
        ranks.wait()
        before = _begun(path)
        if before is not None:
            _refuse_other(path, before.get("identity", {}), identity)
        store = cls(path, remote=remote)
        ranks.wait()  # all have looked before anything is written
        if before is None:
            store._begin({"identity": identity, "finished": False, "format": FORMAT})
        elif before.get("format", 1) < FORMAT:
            store.save_info({"format": FORMAT})  # the manifest of the first is a listing as well
        return store

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Until the block ends run.json is written by this process; a second owner is refused."""
        owner = Owner(self.path, remote=self.remote)
        ranks.by_first(lambda: owner.__enter__() and None)
        try:
            if ranks.first():
                self._owner = owner
                remove_partials(self.path)
            yield
        finally:
            self._owner = None
            if ranks.first():
                owner.__exit__(None, None, None)

    @property
    def info(self) -> dict[str, Any]:
        return dict(self._info) if self._info is not None else read_info(self.path) or {}

    def save_info(self, changes: dict[str, Any]) -> None:
        """Merges `changes` into run.json; a finished run gets its manifest first."""
        if self._info is not None:
            self._info |= changes
            return
        if self._owner is not None:
            self._owner.check()
        if changes.get("finished"):
            self._merge()
            self.send_rest()
        self._put(RUN, _json({**self.info, **changes}))

    def write(self, name: str, save: Save) -> None:
        """Saves one file for good: `save` writes it to the binary file it is given."""
        if ranks.first():
            with on_disk(self.path):
                self._mark(name, write_whole(self.file(name), save))
        ranks.wait()  # the others read it from here on
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
        with on_disk(self.path):
            made = create_whole(self.path / RUN, _json(info))
        if made and self.remote is not None:
            self.remote.send(RUN)
        if not made:
            _refuse_other(self.path, self.info.get("identity", {}), info["identity"])

    def _entry(self, name: str) -> dict[str, Any] | None:
        """What was said of a file last: by its marker, else by the manifest."""
        if ranks.count() == 1:
            entry = read_marker(self._marker(name))
            if entry is not None:
                self._listed[name] = entry
        return self._listed.get(name)

    def _mark(self, name: str, written: Written) -> None:
        if self.remote is not None:
            self.remote.send(name)
        self._put(
            f"{MARKERS}/{name}.json", json.dumps({"name": name, **written._asdict()}).encode()
        )

    def _put(self, name: str, text: bytes) -> None:
        """Writes a file that has no marker: markers, run.json, the manifest."""
        with on_disk(self.path):
            write_whole(self.path / name, lambda file: file.write(text))
        if self.remote is not None:
            self.remote.send(name)

    def _marker(self, name: str) -> Path:
        return self.path / MARKERS / f"{name}.json"

    def _stamp(self, name: str) -> tuple[int, int]:
        facts = self.file(name).stat()
        return facts.st_size, facts.st_mtime_ns

    def _merge(self) -> None:
        """manifest.jsonl: every file that is done, whoever wrote it."""
        entries = read_manifest(self.path) | read_markers(self.path)
        lines = [json.dumps(entries[name]) + "\n" for name in sorted(entries)]
        self._put(MANIFEST, "".join(lines).encode())


def read_info(path: Path) -> dict[str, Any] | None:
    """What run.json says; None where there is none."""
    file = path / RUN
    if not file.is_file():
        return None
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{file} is damaged ({error}). Remove the folder, or choose another --out."
        ) from error
    if isinstance(info, dict) and info.get("format", 1) > FORMAT:
        raise UserError(
            f"{path} has the format {info['format']}, and this anchorscope reads up to {FORMAT}. "
            "Install a newer one."
        )
    return info


def _begun(path: Path) -> dict[str, Any] | None:
    """What run.json says; None in an empty place, an error in one that is not a run's."""
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


def _json(info: dict[str, Any]) -> bytes:
    return (json.dumps(info, indent=1, ensure_ascii=False) + "\n").encode()


def _refuse_other(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    names = sorted({*before, *now})
    other = [name for name in names if before.get(name) != now.get(name)]
    if other:
        differ = "; ".join(f"{n}: {before.get(n)!r} there, {now.get(n)!r} asked" for n in other)
        raise UserError(
            f"{path} holds another run ({differ}). Give the same options to continue it, "
            "or choose another --out."
        )
