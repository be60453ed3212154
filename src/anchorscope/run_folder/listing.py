"""Which files a run holds: each by its own marker, all of them in run.json when it is finished."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from anchorscope.errors import UserError
from anchorscope.run_folder.info import COPY, readable_info, wrong_with_copy
from anchorscope.run_folder.whole import is_partial

MARKERS, STATES = "markers", "states"
MANIFEST = "manifest.jsonl"  # where formats before 3 listed the files of a finished run
Entry = dict[str, Any]  # name, bytes, sha256
Entries = dict[str, Entry]  # by name
# Made from the other files and written without a marker. `robust/` holds folders with markers of
# their own, and a run.json each.
_DERIVED_FROM = ("probes/", "figures/", "tables/", "report.html")
_DERIVED = ("probes/**/*", "figures/**/*", "tables/**/*", "robust/*/run.json", "report.html")


class Listing(NamedTuple):
    """The files of a finished run: those that have a marker, and those made from them."""

    files: Entries
    derived: Entries

    @property
    def all(self) -> Entries:
        return self.files | self.derived

    def as_info(self) -> dict[str, dict[str, str]]:
        """The listing as run.json has it: a line for each file."""
        return {
            part: {name: f"{of['bytes']} {of['sha256']}" for name, of in sorted(entries.items())}
            for part, entries in self._asdict().items()
        }


def read_listing(path: Path, info: Mapping[str, Any] | None = None) -> Listing:
    """The listing in run.json (or in its copy, where run.json is damaged), or in manifest.jsonl."""
    info = readable_info(path) if info is None else info
    if "files" in info:
        return Listing(_listed(info.get("files")), _listed(info.get("derived")))
    listed, marked = read_manifest(path), read_markers(path)
    names = {n for n in listed if n not in marked and n.startswith(_DERIVED_FROM)}
    return Listing(
        {name: of for name, of in listed.items() if name not in names},
        {name: of for name, of in listed.items() if name in names},
    )


def _listed(part: object) -> Entries:
    """The entries of one part of the listing in run.json; a line that makes no sense is none."""
    entries: Entries = {}
    for name, said in part.items() if isinstance(part, dict) else ():
        with suppress(ValueError, AttributeError):
            size, sha256 = said.split()
            entry = _entry({"name": name, "bytes": int(size), "sha256": sha256})
            if entry is not None:
                entries[name] = entry
    return entries


def read_manifest(path: Path) -> Entries:
    """The files of manifest.jsonl; in the first format it was appended to."""
    entries: Entries = {}
    with suppress(OSError):
        for line in (path / MANIFEST).read_bytes().splitlines():
            entry = _parsed(line)  # None of a line that was torn: its file is done again
            if entry is not None:
                entries[entry["name"]] = entry
    return entries


def read_markers(path: Path) -> Entries:
    """The files that have a marker, here or in the folders of questions asked again."""
    entries: Entries = {}
    for folder in (path, *sorted((path / "robust").glob("*"))):
        inside = folder.relative_to(path).as_posix()
        for file in (folder / MARKERS).rglob("*.json"):
            entry = read_marker(file)
            if entry is not None:
                name = (PurePosixPath(inside) / entry["name"]).as_posix()
                entries[name] = entry | {"name": name}
    return entries


def read_marker(file: Path) -> Entry | None:
    """What a marker says; None where it is not there, torn, or another file's."""
    with suppress(OSError):
        entry = _parsed(file.read_bytes())
        if entry is not None and file.as_posix().endswith(f"{MARKERS}/{entry['name']}.json"):
            return entry
    return None


def marker_name(name: str) -> str:
    """The name of a file's marker."""
    parts = PurePosixPath(name).parts
    inside = parts[:2] if parts[0] == "robust" else ()
    return "/".join((*inside, MARKERS, *parts[len(inside) :])) + ".json"


def _parsed(text: bytes) -> Entry | None:
    """The entry that the text describes; None where it describes none."""
    with suppress(ValueError, RecursionError):  # UnicodeDecodeError is a ValueError too
        return _entry(json.loads(text))
    return None


def _entry(entry: Any) -> Entry | None:
    kinds = {"name": str, "bytes": int, "sha256": str}
    if isinstance(entry, dict) and all(isinstance(entry.get(n), k) for n, k in kinds.items()):
        place = PurePosixPath(entry["name"])
        return None if place.is_absolute() or ".." in place.parts else entry
    return None


def derived_files(path: Path) -> Iterator[Path]:
    """Every file made from the others: probes, figures, tables, the report."""
    for pattern in _DERIVED:
        files = (p for p in path.glob(pattern) if p.is_file() and not is_partial(p.name))
        yield from sorted(files)


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


def check_files(path: Path) -> Iterator[tuple[str, str]]:
    """The name of everything that a run must hold, and what is wrong with it; "" where nothing is.

    Every byte is read. The states may be gone as a whole: many remove them when a run is finished.
    """
    info, marked = readable_info(path), read_markers(path)
    listing = read_listing(path, info)
    entries = listing.all | marked
    if not (path / STATES).is_dir():
        entries = {n: of for n, of in entries.items() if not n.startswith(f"{STATES}/")}
    for name, entry in sorted(entries.items()):
        yield name, whats_wrong(path, entry)
    there = {p.relative_to(path).as_posix() for p in path.rglob(f"{MARKERS}/**/*.json")}
    good = {marker_name(name) for name in marked}
    yield from ((name, "it is damaged") for name in sorted(there - good))
    due = {marker_name(name) for name in listing.files if "files" in info}  # the first had none
    yield from ((name, "it is missing") for name in sorted(due - good - there))
    if info.get("finished"):
        yield from _check_lists(path, info, marked)


def _check_lists(path: Path, info: Mapping[str, Any], marked: Entries) -> Iterator[tuple[str, str]]:
    """The copy of a finished run's run.json; of earlier formats the listing beside it."""
    if "files" in info:
        yield COPY, wrong_with_copy(path)
        return
    lacking = marked.keys() - read_manifest(path).keys()
    gone = not read_manifest(path)
    yield (
        MANIFEST,
        "it is missing or empty"
        if gone
        else (f"it lacks {len(lacking)} finished files" if lacking else ""),
    )


def require_whole(path: Path, name: str) -> None:
    """Raise a UserError where a file is listed and is not as it was written."""
    entry = read_marker(path / marker_name(name))
    if entry is None:
        entry = read_listing(path).all.get(name)
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
