"""The run folder: written whole or not at all, and continued where it stopped.

A file is written under a temporary name, renamed, and listed in manifest.jsonl last. What the
manifest does not list with the right size and checksum is not there. Of several processes that
share a model the first writes, and the others see what they saw when the run was opened and what
they would have written since: so all of them take the same turns.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anchorscope import ranks
from anchorscope.errors import UserError

RUN, MANIFEST = "run.json", "manifest.jsonl"


class Store:
    """One run folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listed: dict[str, dict[str, Any]] = {}
        self._info = None if ranks.first() else read_info(path) or {}
        self._read_manifest()

    @classmethod
    def open(cls, path: str | Path, identity: dict[str, Any]) -> Store:
        """The folder for a run of this identity; another run's folder is refused."""
        path = Path(path).expanduser()
        before = read_info(path)
        if before is None and path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(
                f"{path} exists and is not a run of anchorscope. Choose another --out, or empty it."
            )
        if before is not None:
            _refuse_other(path, before.get("identity", {}), identity)
        store = cls(path)
        ranks.wait()  # all have looked before anything is written
        if ranks.first():
            with _disk(path):
                path.mkdir(parents=True, exist_ok=True)
        if before is None:
            store.save_info({"identity": identity, "finished": False})
        return store

    @property
    def info(self) -> dict[str, Any]:
        return dict(self._info) if self._info is not None else read_info(self.path) or {}

    def save_info(self, changes: dict[str, Any]) -> None:
        """Merges `changes` into run.json."""
        if self._info is not None:
            self._info |= changes
            return
        text = json.dumps({**self.info, **changes}, indent=1, ensure_ascii=False) + "\n"
        self._replace(RUN, lambda file: file.write_text(text, encoding="utf-8"))

    def write(self, name: str, save: Callable[[Path], object]) -> None:
        """Saves one file for good: `save` writes it to the path it is given."""
        target = self._replace(name, save) if ranks.first() else self.file(name)
        ranks.wait()  # the others read it from here on
        entry = {"name": name, "bytes": target.stat().st_size, "sha256": _checksum(target)}
        if ranks.first():
            self._list(entry)
        self._listed[name] = entry

    def has(self, name: str) -> bool:
        """Whether the file is listed, there, and unchanged since it was written."""
        entry, target = self._listed.get(name), self.path / name
        return (
            entry is not None
            and target.is_file()
            and target.stat().st_size == entry["bytes"]
            and _checksum(target) == entry["sha256"]
        )

    def file(self, name: str) -> Path:
        return self.path / name

    def _list(self, entry: dict[str, Any]) -> None:
        with _disk(self.path), (self.path / MANIFEST).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _replace(self, name: str, save: Callable[[Path], object]) -> Path:
        target = self.path / name
        partial = target.with_name(f".{target.name}.partial")
        with _disk(self.path):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                save(partial)
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)
        return target

    def _read_manifest(self) -> None:
        manifest = self.path / MANIFEST
        if not manifest.exists():
            return
        for line in manifest.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # the line a kill tore off: its file is done again
            self._listed[entry["name"]] = entry


def read_info(path: Path) -> dict[str, Any] | None:
    """What run.json says; None where there is none."""
    file = path / RUN
    if not file.is_file():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{file} is damaged ({error}). Remove the folder, or choose another --out."
        ) from error


class _disk:
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
