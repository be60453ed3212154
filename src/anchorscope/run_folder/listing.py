"""Which files of a run are done: each by its own marker, and all of them in one listing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from anchorscope.errors import UserError
from anchorscope.run_folder.whole import is_partial

MANIFEST, MARKERS, STATES = "manifest.jsonl", "markers", "states"
Entry = dict[str, Any]  # name, bytes, sha256
Entries = dict[str, Entry]  # by name
# What is made from the other files and written beside the store: it has no markers, and stands in
# the listing alone.
_DERIVED = ("probes", "figures", "tables", "report.html")


def read_manifest(path: Path) -> Entries:
    """The files of the merged listing; in the first format it was appended to."""
    entries: Entries = {}
    with suppress(OSError):
        for line in (path / MANIFEST).read_bytes().splitlines():
            entry = _entry(line)  # None of a line that was torn: its file is done again
            if entry is not None:
                entries[entry["name"]] = entry
    return entries


def read_markers(path: Path) -> Entries:
    """The files that have a marker."""
    entries = (read_marker(file) for file in (path / MARKERS).rglob("*.json"))
    return {entry["name"]: entry for entry in entries if entry is not None}


def read_marker(file: Path) -> Entry | None:
    """What a marker says; None where it is not there, torn, or another file's."""
    with suppress(OSError):
        entry = _entry(file.read_bytes())
        if entry is not None and file.as_posix().endswith(f"{MARKERS}/{entry['name']}.json"):
            return entry
    return None


def _entry(text: bytes) -> Entry | None:
    """The entry that the text describes; None where it describes none."""
    with suppress(ValueError, RecursionError):  # UnicodeDecodeError is a ValueError too
        entry = json.loads(text)
        kinds = {"name": str, "bytes": int, "sha256": str}
        if isinstance(entry, dict) and all(isinstance(entry.get(n), k) for n, k in kinds.items()):
            place = PurePosixPath(entry["name"])
            return None if place.is_absolute() or ".." in place.parts else entry
    return None


def derived_entries(path: Path) -> Entries:
    """The files that have no marker and are listed all the same, as they are now."""
    marked = read_markers(path)
    names = (p.relative_to(path).as_posix() for p in derived_files(path))
    return {name: entry_of(path, name) for name in names if name not in marked}


def derived_files(path: Path) -> Iterator[Path]:
    """Every file made from the others: probes, figures, tables, the report."""
    for name in _DERIVED:
        place = path / name
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        yield from (p for p in files if p.is_file() and not is_partial(p.name))


def entry_of(path: Path, name: str) -> Entry:
    """The entry of a file as it is now."""
    file = path / name
    return {"name": name, "bytes": file.stat().st_size, "sha256": checksum(file)}


def whats_wrong(path: Path, entry: Entry) -> str:
    """What is wrong with a listed file, in words; nothing where it is as it was written."""
    file = path / entry["name"]
    if not file.is_file():
        return "it is missing"
    try:
        size = file.stat().st_size
        if size != entry["bytes"]:
            return f"it has {size} bytes, and {entry['bytes']} were written"
        if checksum(file) != entry["sha256"]:
            return "its checksum is another than that of what was written"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return ""


def damaged_files(path: Path) -> dict[str, str]:
    """What is wrong with each listed file of a run that is not as it was written.

    Every byte is read. The states may be gone as a whole: many
    remove them when a run is finished.
    """
    entries = read_manifest(path) | read_markers(path)
    if not (path / STATES).is_dir():
        entries = {name: of for name, of in entries.items() if not name.startswith(f"{STATES}/")}
    seen = {name: whats_wrong(path, of) for name, of in sorted(entries.items())}
    return {name: wrong for name, wrong in seen.items() if wrong}


def require_whole(path: Path, name: str) -> None:
    """Raise a UserError where a file is listed and is not as it was written."""
    entry = read_marker(path / MARKERS / f"{name}.json") or read_manifest(path).get(name)
    wrong = entry and whats_wrong(path, entry)
    if wrong:
        raise UserError(
            f"'{path / name}' is damaged: {wrong}. The command that made the run makes it again; "
            f"`anchorscope verify {path}` looks at every file."
        )


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
