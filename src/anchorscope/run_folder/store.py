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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from anchorscope import ranks
from anchorscope.errors import UserError
from anchorscope.run_folder.owner import OWNER, Owner
from anchorscope.run_folder.whole import (
    Save,
    Written,
    create_whole,
    is_partial,
    on_disk,
    remove_partials,
    write_whole,
)

RUN, MANIFEST, MARKERS = "run.json", "manifest.jsonl", "markers"
FORMAT = 2  # 1 had no markers: its manifest was appended to


class Store:
    """One run folder on disk.

    With `info` it is a worker's: what run.json said when the run was handed out, and what the
    worker notes stays with it.
    """

    def __init__(self, path: Path, *, info: dict[str, Any] | None = None) -> None:
        self.path = path
        self._owner: Owner | None = None
        self._whole: dict[str, tuple[int, int]] = {}  # size and time of files seen to be right
        self._info = info if info is not None or ranks.first() else read_info(path) or {}
        self._listed = _read_manifest(path)
        if ranks.count() > 1:
            self._listed |= _read_markers(path)

    @classmethod
    def open(cls, path: str | Path, identity: dict[str, Any]) -> Store:
        """The folder for a run of this identity; another run's folder is refused."""
        path = Path(path).expanduser()
        before = _begun(path)
        if before is not None:
            _refuse_other(path, before.get("identity", {}), identity)
        store = cls(path)
        ranks.wait()  # all have looked before anything is written
        if before is None:
            store._begin({"identity": identity, "finished": False, "format": FORMAT})
        elif before.get("format", 1) < FORMAT:
            store.save_info({"format": FORMAT})  # the manifest of the first is a listing as well
        return store

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Until the block ends run.json is written by this process; a second owner is refused."""
        owner = Owner(self.path)
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
        text = _json({**self.info, **changes})
        with on_disk(self.path):
            write_whole(self.path / RUN, lambda file: file.write(text))

    def write(self, name: str, save: Save) -> None:
        """Saves one file for good: `save` writes it to the binary file it is given."""
        if ranks.first():
            with on_disk(self.path):
                self._mark(name, write_whole(self.file(name), save))
        ranks.wait()  # the others read it from here on
        self._listed[name] = _read_marker(self._marker(name)) or {}
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
            if stamp[0] != entry["bytes"] or _checksum(self.file(name)) != entry["sha256"]:
                return False
            self._whole[name] = stamp
        return stamp[0] == entry["bytes"]

    def file(self, name: str) -> Path:
        return self.path / name

    def _begin(self, info: dict[str, Any]) -> None:
        """Writes the first run.json; of several processes that begin at once one does."""
        if self._info is not None:
            self._info |= info
            return
        with on_disk(self.path):
            made = create_whole(self.path / RUN, _json(info))
        if not made:
            _refuse_other(self.path, self.info.get("identity", {}), info["identity"])

    def _entry(self, name: str) -> dict[str, Any] | None:
        """What was said of a file last: by its marker, else by the manifest."""
        if ranks.count() == 1:
            entry = _read_marker(self._marker(name))
            if entry is not None:
                self._listed[name] = entry
        return self._listed.get(name)

    def _mark(self, name: str, written: Written) -> None:
        text = json.dumps({"name": name, **written._asdict()}).encode()
        write_whole(self._marker(name), lambda file: file.write(text))

    def _marker(self, name: str) -> Path:
        return self.path / MARKERS / f"{name}.json"

    def _stamp(self, name: str) -> tuple[int, int]:
        facts = self.file(name).stat()
        return facts.st_size, facts.st_mtime_ns

    def _merge(self) -> None:
        """manifest.jsonl: every file that is done, whoever wrote it."""
        entries = _read_manifest(self.path) | _read_markers(self.path)
        lines = [json.dumps(entries[name]) + "\n" for name in sorted(entries)]
        text = "".join(lines).encode()
        with on_disk(self.path):
            write_whole(self.path / MANIFEST, lambda file: file.write(text))


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


def _read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    manifest, entries = path / MANIFEST, {}
    if manifest.exists():
        for line in manifest.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):  # a line a kill tore off: its file is done again
                entry = json.loads(line)
                entries[entry["name"]] = entry
    return entries


def _read_markers(path: Path) -> dict[str, dict[str, Any]]:
    entries = (_read_marker(file) for file in (path / MARKERS).rglob("*.json"))
    return {entry["name"]: entry for entry in entries if entry is not None}


def _read_marker(file: Path) -> dict[str, Any] | None:
    with suppress(OSError, json.JSONDecodeError):
        return json.loads(file.read_text(encoding="utf-8"))
    return None


def _json(info: dict[str, Any]) -> bytes:
    return (json.dumps(info, indent=1, ensure_ascii=False) + "\n").encode()


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _refuse_other(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    names = sorted({*before, *now})
    other = [name for name in names if before.get(name) != now.get(name)]
    if other:
        differ = "; ".join(f"{n}: {before.get(n)!r} there, {now.get(n)!r} asked" for n in other)
        raise UserError(
            f"{path} holds another run ({differ}). Give the same options to continue it, "
            "or choose another --out."
        )
