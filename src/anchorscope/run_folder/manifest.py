"""Read, write and verify a run folder's run.json and the markers of its files.

run.json holds the run's config and facts under a checksum of its own: it records how shards were
cut and questions prompted, without which states are useless. A marker, markers/<name>.json, holds
name, size and SHA-256 of a file and is written after it. The run.json of a finished run lists every
marked file, so that a lost one is detected.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, StrictInt, StrictStr, ValidationError

from anchorscope.errors import UserError, short
from anchorscope.run_folder.disk import Written, describe, is_partial, unsafe_entries
from anchorscope.run_folder.identity import versions

RUN, OWNER, LOCK = "run.json", "owner.json", "owner.lock"
MARKERS, STATES = "markers", "states"
REMAINING = "remaining"  # the folder of questions beyond those that probes learn from
FORMAT = 3
REMAKE = "the command that made the run makes it again"
_CHECKSUM = "checksum"
_UNLISTED = (RUN, OWNER, LOCK, "view.html")
Entries = dict[str, Written]  # by name


# --- The owner of a run folder ---


class Busy(UserError):
    """Another process owns the folder."""

    @classmethod
    def by(cls, place: object, owner: Any, advice: str = "") -> Busy:
        """Make the error for a folder or URL that `owner` (the content of owner.json) holds."""
        owner = owner if isinstance(owner, dict) else {}
        process, host, since = (owner.get(n, "unknown") for n in ("process", "host", "since"))
        return cls(
            f"{place} is being written by process {process} on {host}, since {since}. Wait until "
            f"it is done, or stop it; the same command then continues.{advice}"
        )


def this_owner() -> dict[str, Any]:
    """The content of owner.json for this process: its id, host and start time."""
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"process": os.getpid(), "host": socket.gethostname(), "since": since}


# --- run.json ---


def info_text(info: Mapping[str, Any]) -> bytes:
    """Encode run.json: the info, with a checksum of all of it."""
    content = {name: value for name, value in info.items() if name != _CHECKSUM}
    content[_CHECKSUM] = _checksum(content)
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def read_info(path: Path) -> dict[str, Any] | None:
    """Read run.json and verify its checksum; None where there is no such file."""
    file = path / RUN
    if not file.is_file():
        return None
    try:
        info = _parse_info(file)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{file} is damaged ({error}). Put a backup of it in its place, or remove the folder, "
            "or choose another --out."
        ) from error
    if info.get("format", FORMAT) != FORMAT:
        raise UserError(
            f"{path} has the format {info['format']}, and this anchorscope reads {FORMAT}. Install "
            "the version that wrote it, or run its command into a new folder."
        )
    return info


def _parse_info(file: Path) -> dict[str, Any]:
    info = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(info, dict) or not isinstance(info.get("format", FORMAT), int):
        raise ValueError("it does not describe a run")
    # Without the line the file was edited on purpose.
    checksum = info.pop(_CHECKSUM, None)
    if checksum is not None and checksum != _checksum(info):
        raise ValueError(
            "it was changed after it was written; if you did that, remove its line "
            f'"{_CHECKSUM}" too'
        )
    return info


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class _Model(BaseModel):
    name: StrictStr
    blocks: StrictInt | None = None
    width: StrictInt | None = None


class _Dataset(BaseModel):
    name: StrictStr
    questions: StrictInt | None = None
    dropped: dict[str, Any] | None = None


def _require_names_differ(datasets: list[_Dataset]) -> list[_Dataset]:
    if len({dataset.name for dataset in datasets}) < len(datasets):
        raise ValueError("two datasets have one name")
    return datasets


class _Info(BaseModel):
    """The parts of run.json that every reader relies on."""

    model: _Model
    datasets: Annotated[list[_Dataset], Field(min_length=1), AfterValidator(_require_names_differ)]
    config: dict[str, Any] | None = None
    identity: dict[str, Any] | None = None
    versions: dict[str, Any] | None = None
    stages: dict[str, dict[str, float | list[float] | None]] | None = None


def check_info(info: Mapping[str, Any], file: Path) -> None:
    """Raise a UserError where run.json lacks a model or datasets, or describes them wrongly."""
    if info.get("model") is None or info.get("datasets") is None:
        raise UserError(f"'{file}' names no model or datasets. Run its command again.")
    try:
        _Info.model_validate(info)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"'{file}' describes no run: its {' '.join(map(str, first['loc']))} is "
            f"{short(first['input'])}. Get the folder again, or run its command into a new one."
        ) from error


# --- The listing in run.json, and the markers ---


def read_listing(path: Path, info: Mapping[str, Any] | None = None) -> Entries:
    """The files listed in run.json, by name; empty for an unfinished or unreadable run.json."""
    if info is None:
        info = {}
        with suppress(OSError, ValueError, RecursionError):
            info = _parse_info(path / RUN)
    entries, lines = {}, info.get("files")
    for name, line in lines.items() if isinstance(lines, dict) else ():
        match, place = re.fullmatch(r"(\d{1,18}) (\w+)", str(line)), PurePosixPath(name)
        if match and not place.is_absolute() and ".." not in place.parts:
            entries[name] = Written(int(match[1]), match[2])
    return entries


class _Marker(BaseModel, strict=True):
    name: str
    bytes: int
    sha256: str


def marker_text(name: str, written: Written) -> bytes:
    """Encode a file's marker."""
    return json.dumps({"name": name, **written._asdict()}).encode()


def marker_name(name: str) -> str:
    """The name of a file's marker in the run folder."""
    return f"{MARKERS}/{name}.json"


def read_marker(path: Path, name: str) -> Written | None:
    """Read size and SHA-256 from a file's marker; None where it is missing or invalid."""
    with suppress(OSError, ValueError):
        marker = _Marker.model_validate_json((path / marker_name(name)).read_bytes())
        if marker.name == name:
            return Written(marker.bytes, marker.sha256)
    return None


def marked_names(path: Path) -> set[str]:
    """The names of all files that have a marker, even a damaged one."""
    files = (path / MARKERS).rglob("*.json")
    return {file.relative_to(path / MARKERS).as_posix().removesuffix(".json") for file in files}


def read_markers(path: Path) -> Entries:
    """Read all valid markers, by file name."""
    markers = {name: read_marker(path, name) for name in marked_names(path)}
    return {name: written for name, written in markers.items() if written is not None}


# --- Verification of the files ---


def check_files(path: Path) -> Iterator[tuple[str, str]]:
    """Check every file that a run must hold; yield its name and problem ("" if there is none).

    Every byte is read. A folder of states may be missing: it may be removed after a run.
    """
    listed, marked, named = read_listing(path), read_markers(path), marked_names(path)
    for name, written in sorted((listed | marked).items()):
        inside, is_state, _ = f"/{name}".partition(f"/{STATES}/")
        if not is_state or (path / inside[1:] / STATES).is_dir():
            yield name, _problem_with(path / name, written)
    torn = named - marked.keys()
    yield from ((marker_name(name), "it is damaged") for name in sorted(torn))
    lost = listed.keys() - named
    yield from ((marker_name(name), "it is missing") for name in sorted(lost))


def _problem_with(file: Path, written: Written) -> str:
    """Describe how a file differs from what was written; "" where it does not."""
    try:
        size = file.stat().st_size
        if size != written.bytes:
            return f"it has {size} bytes, and {written.bytes} were written"
        if describe(file) != written:
            return "its checksum is another than that of what was written"
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return ""


def require_whole(path: Path, name: str) -> None:
    """Raise a UserError where a listed file differs from what was written."""
    written = read_marker(path, name) or read_listing(path).get(name)
    problem = written and _problem_with(path / name, written)
    if problem:
        raise UserError(
            f"'{path / name}' is damaged: {problem}. The command that made the run makes it again; "
            f"`anchorscope verify {path}` looks at every file."
        )


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of one check: the problem and its remedy, or a note where it passed."""

    name: str
    wrong: str = ""
    do: str = ""
    note: str = ""  # about a check that passed

    @property
    def ok(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        more = "; ".join(filter(None, (self.wrong, self.do) if self.wrong else (self.note,)))
        return f"{self.name}: {more}" if more else self.name


def verify_run(path: Path) -> Iterator[Checked]:
    """Check everything in a run folder: run.json, its versions, and each file."""
    unsafe = list(unsafe_entries(path))
    for entry, reason in unsafe:
        name = entry.relative_to(path).as_posix()
        yield Checked(name=name, wrong=f"it {reason}", do="it is not opened")
    if unsafe:  # any of the names may lead to another file, or to one without end
        return
    yield from _verify_info(path)
    problems = dict(check_files(path))
    names = {*read_listing(path), *problems}
    if not (path / STATES).is_dir() and any(name.startswith(f"{STATES}/") for name in names):
        yield Checked(name=STATES, note="removed after the run; nothing is computed from them")
    for name, wrong in problems.items():
        yield Checked(name=name, wrong=wrong, do=REMAKE if wrong else "")
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        name = file.relative_to(path).as_posix()
        if name not in {*names, *_UNLISTED} and not name.startswith(f"{MARKERS}/"):
            note = "not listed: another command or another version wrote it"
            if is_partial(file.name):
                note = "being written, or left by a killed writer; a later command removes it"
            yield Checked(name=name, note=note)


def _verify_info(path: Path) -> Iterator[Checked]:
    """Check run.json, the versions in it, and whether the run is finished."""
    try:
        info = read_info(path)
    except UserError as error:
        yield Checked(name=RUN, wrong=str(error).rstrip("."))
        return
    if info is None:
        yield Checked(name=RUN, wrong="it is missing", do="put a backup of it in its place")
        return
    yield Checked(name=RUN, note=f"format {FORMAT}")
    noted, here = info.get("versions"), versions()
    other = [
        f"{name} {number} there, {here.get(name, 'none')} here"
        for name, number in (noted.items() if isinstance(noted, dict) else ())
        if here.get(name) != number
    ]
    note = "; ".join(other) + ": last digits may differ" if other else "those installed here"
    yield Checked(name="versions", note=note)
    if not info.get("finished"):
        yield Checked(name="finished", wrong="the run is not finished", do="run its command again")
