"""Every file of a run folder held against what was written down when it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorscope.errors import UserError
from anchorscope.run_folder.identity import versions
from anchorscope.run_folder.info import FORMAT, RUN, read_info, readable_info
from anchorscope.run_folder.links import odd_entries
from anchorscope.run_folder.listing import (
    MARKERS,
    STATES,
    check_files,
    derived_files,
    read_listing,
)
from anchorscope.run_folder.owner import LOCK, OWNER
from anchorscope.run_folder.whole import is_partial

AGAIN = "the command that made the run makes it again"
# Kept beside the listing: by its own checksum, by nothing, or made by another command.
_BESIDE = (RUN, OWNER, LOCK, "view.html")


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One check: what is wrong and what to do, or that all is well."""

    name: str
    wrong: str = ""
    do: str = ""
    note: str = ""  # worth saying of a check that went well

    @property
    def ok(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        if self.ok:
            return f"{self.name}: {self.note}" if self.note else self.name
        return f"{self.name}: {self.wrong}; {self.do}" if self.do else f"{self.name}: {self.wrong}"


def verify_run(path: Path) -> Iterator[Checked]:
    """Everything in a run folder, a line each: run.json, its versions, and each file."""
    odd = list(odd_entries(path))
    for entry, why in odd:
        name = entry.relative_to(path).as_posix()
        yield Checked(name=name, wrong=f"it {why}", do="it is not opened")
    if odd:  # behind any of the names may be another file, or one without end
        return
    try:
        info = read_info(path)
    except UserError as error:
        yield Checked(name=RUN, wrong=str(error).rstrip("."))
    else:
        yield from _about(info)
    seen = dict(check_files(path))
    listed = {*read_listing(path).all, *seen}
    if not (path / STATES).is_dir() and any(name.startswith(f"{STATES}/") for name in listed):
        yield Checked(name=STATES, note="removed after the run; nothing is computed from them")
    for name, wrong in seen.items():
        yield Checked(name=name, wrong=wrong, do=AGAIN if wrong else "")
    yield from _unlisted(path, listed)


def _about(info: Mapping[str, Any] | None) -> Iterator[Checked]:
    """run.json, and what it says of format, versions and whether the run is finished."""
    if info is None:
        yield Checked(name=RUN, wrong="it is missing", do="put a backup of it in its place")
        return
    yield Checked(name=RUN, note=f"format {info.get('format', 1)} of {FORMAT}")
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


def _unlisted(path: Path, listed: set[str]) -> Iterator[Checked]:
    """Files that no listing names."""
    finished, derived = readable_info(path).get("finished"), set(derived_files(path))
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        name = file.relative_to(path).as_posix()
        expected = name in listed or name in _BESIDE or name.startswith("view-data/")
        if expected or MARKERS in file.relative_to(path).parts:
            continue
        note = "not listed: another command or another version wrote it"
        if is_partial(file.name):
            note = "left by a killed writer; the next one removes it"
        elif file in derived and not finished:
            note = "not listed before the run is finished"
        yield Checked(name=name, note=note)
