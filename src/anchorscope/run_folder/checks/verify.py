"""Every file of a run folder held against what was written down when it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorscope.errors import UserError
from anchorscope.run_folder.identity import versions
from anchorscope.run_folder.info import COPY, FORMAT, read_info, readable_info
from anchorscope.run_folder.links import odd_entries
from anchorscope.run_folder.listing import (
    MARKERS,
    STATES,
    check_files,
    derived_files,
    read_listing,
)
from anchorscope.run_folder.owner import OWNER
from anchorscope.run_folder.remote import RUN
from anchorscope.run_folder.whole import is_partial

AGAIN = "the command that made the run makes it again"
# Kept beside the listing: by its own checksum, by nothing, or made by other commands.
_BESIDE = (RUN, COPY, OWNER, "view.html")
_PAGE_DATA = "view-data/"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One thing that was looked at: what is wrong with it and what to do, or that it is right."""

    name: str
    wrong: str = ""
    do: str = ""
    note: str = ""  # what is worth saying of something that is right

    @property
    def ok(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        if self.ok:
            return f"{self.name}: {self.note}" if self.note else self.name
        return f"{self.name}: {self.wrong}; {self.do}" if self.do else f"{self.name}: {self.wrong}"


def verify_run(path: Path) -> Iterator[Checked]:
    """Everything in a run folder, a line each: run.json, its versions, and each file."""
    odd = [Checked(name=p.relative_to(path).as_posix(), wrong=f"it {why}", do="it is not opened")
           for p, why in odd_entries(path)]  # fmt: skip
    if odd:  # another file, or none that ends, may lie behind any of the names
        yield from odd
        return
    try:
        info = read_info(path)
    except UserError as error:
        yield Checked(name=RUN, wrong=str(error).rstrip("."))
        info = None
    if info is not None:
        yield from _about(info)
    seen = dict(check_files(path))
    listed = {*read_listing(path).all, *seen}
    if not (path / STATES).is_dir() and any(name.startswith(f"{STATES}/") for name in listed):
        yield Checked(name=STATES, note="removed after the run; nothing is computed from them")
    for name, wrong in seen.items():
        yield Checked(name=name, wrong=wrong, do=AGAIN if wrong else "")
    yield from _unlisted(path, listed)


def _about(info: dict[str, Any]) -> Iterator[Checked]:
    """run.json, and what it says of format, versions and whether the run is finished."""
    format_ = info.get("format", 1)
    yield Checked(name=RUN, note=f"format {format_} of {FORMAT}")
    here = versions()
    other = [
        f"{name} {number} there, {here.get(name, 'none')} here"
        for name, number in _mapping(info.get("versions")).items()
        if here.get(name) != number
    ]
    note = "; ".join(other) + ": last digits may differ" if other else "those installed here"
    yield Checked(name="versions", note=note)
    if not info.get("finished"):
        yield Checked(name="finished", wrong="the run is not finished", do="run its command again")


def _mapping(part: object) -> Mapping[str, object]:
    return part if isinstance(part, Mapping) else {}


def _unlisted(path: Path, listed: set[str]) -> Iterator[Checked]:
    """Files that no listing names."""
    derived = {} if readable_info(path).get("finished") else set(derived_files(path))
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        name = file.relative_to(path).as_posix()
        if name in listed or name in _BESIDE or MARKERS in file.relative_to(path).parts:
            continue
        if name.startswith(_PAGE_DATA):
            continue
        if is_partial(file.name):
            yield Checked(
                name=name, note="left by a writer that was killed; the next one removes it"
            )
        elif file in derived:
            yield Checked(name=name, note="not listed before the run is finished")
        else:
            yield Checked(name=name, note="not listed: another command or another version wrote it")
