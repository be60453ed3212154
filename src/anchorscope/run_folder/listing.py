"""The files of a run: each has a marker of its own, and run.json lists them all at the end.

A marker, markers/<name>.json, holds name, size and SHA-256 and is written after its file. Probes,
figures and the report are made from the other files and have none: run.json lists them as
`derived`. The folders of robust/ are runs of their own, with markers of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pydantic import BaseModel

from anchorscope.errors import UserError
from anchorscope.run_folder.info import readable_info
from anchorscope.run_folder.whole import Written, describe, is_partial

MARKERS, STATES = "markers", "states"
_DERIVED = ("probes/**/*", "figures/**/*", "tables/**/*", "robust/*/run.json", "report.html")
Entries = dict[str, Written]  # by name


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
            part: {name: f"{w.bytes} {w.sha256}" for name, w in sorted(entries.items())}
            for part, entries in self._asdict().items()
        }


def read_listing(path: Path, info: Mapping[str, Any] | None = None) -> Listing:
    """The listing in run.json; empty where the run is not finished or of an earlier format."""
    info = readable_info(path) if info is None else info
    return Listing(_listed(info.get("files")), _listed(info.get("derived")))


def _listed(part: object) -> Entries:
    """The entries of one part of the listing; a line that makes no sense is left out."""
    lines = part.items() if isinstance(part, dict) else ()
    matches = {name: re.fullmatch(r"(\d{1,18}) (\w+)", str(line)) for name, line in lines}
    return {
        name: Written(int(match[1]), match[2])
        for name, match in matches.items()
        if match and _stays_inside(name)
    }


def _stays_inside(name: str) -> bool:
    place = PurePosixPath(name)
    return not place.is_absolute() and ".." not in place.parts


class _Marker(BaseModel, strict=True):
    name: str
    bytes: int
    sha256: str


def marker_text(name: str, written: Written) -> bytes:
    """The bytes of a file's marker."""
    return json.dumps({"name": _split(name)[1], **written._asdict()}).encode()


def marker_name(name: str) -> str:
    """The name of a file's marker."""
    folder, own = _split(name)
    return f"{folder}{MARKERS}/{own}.json"


def _split(name: str) -> tuple[str, str]:
    """The folder of robust/ that a file is in, empty for all others, and its name inside that."""
    parts = name.split("/")
    depth = 2 if parts[0] == "robust" else 0
    return "".join(f"{part}/" for part in parts[:depth]), "/".join(parts[depth:])


def read_marker(path: Path, name: str) -> Written | None:
    """What a file's marker says; None where it is not there, torn, or another file's."""
    with suppress(OSError, ValueError):
        marker = _Marker.model_validate_json((path / marker_name(name)).read_bytes())
        if marker.name == _split(name)[1]:
            return Written(marker.bytes, marker.sha256)
    return None


def marked_names(path: Path) -> set[str]:
    """The names of all files that have a marker, be it torn, in robust/ too."""
    names = set()
    for folder in (path, *(path / "robust").glob("*")):
        for file in (folder / MARKERS).rglob("*.json"):
            own = file.relative_to(folder / MARKERS).as_posix().removesuffix(".json")
            names.add((folder.relative_to(path) / own).as_posix())
    return names


def read_markers(path: Path) -> Entries:
    """The files that have a whole marker."""
    markers = {name: read_marker(path, name) for name in marked_names(path)}
    return {name: written for name, written in markers.items() if written is not None}


def derived_files(path: Path) -> Iterator[Path]:
    """Every file made from the others: probes, figures, tables, the report."""
    for pattern in _DERIVED:
        files = (p for p in path.glob(pattern) if p.is_file() and not is_partial(p.name))
        yield from sorted(files)


def check_files(path: Path) -> Iterator[tuple[str, str]]:
    """The name of everything that a run must hold, and what is wrong with it; "" where nothing is.

    Every byte is read. The states may be gone as a whole: many remove them when a run is finished.
    """
    listing, marked = read_listing(path), read_markers(path)
    for name, written in sorted((listing.all | marked).items()):
        if (path / STATES).is_dir() or not name.startswith(f"{STATES}/"):
            yield name, problem_with(path / name, written)
    torn = marked_names(path) - marked.keys()
    yield from ((marker_name(name), "it is damaged") for name in sorted(torn))
    lost = listing.files.keys() - marked.keys() - torn
    yield from ((marker_name(name), "it is missing") for name in sorted(lost))


def problem_with(file: Path, written: Written) -> str:
    """What is wrong with a file, in words; nothing where it is as it was written."""
    if not file.is_file():
        return "it is missing"
    try:
        size = file.stat().st_size
        if size != written.bytes:
            return f"it has {size} bytes, and {written.bytes} were written"
        if describe(file) != written:
            return "its checksum is another than that of what was written"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return ""


def require_whole(path: Path, name: str) -> None:
    """Raise a UserError where a file is listed and is not as it was written."""
    written = read_marker(path, name) or read_listing(path).all.get(name)
    problem = written and problem_with(path / name, written)
    if problem:
        raise UserError(
            f"'{path / name}' is damaged: {problem}. The command that made the run makes it again; "
            f"`anchorscope verify {path}` looks at every file."
        )
