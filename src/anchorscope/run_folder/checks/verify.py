"""Every file of a run folder held against what was written down when it was made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorscope.errors import UserError
from anchorscope.run_folder.identity import versions
from anchorscope.run_folder.info import COPY, FORMAT, read_info
from anchorscope.run_folder.links import odd_entries
from anchorscope.run_folder.listing import (
    MANIFEST,
    MARKERS,
    STATES,
    Entries,
    derived_files,
    read_manifest,
    read_markers,
    whats_wrong,
)
from anchorscope.run_folder.owner import OWNER
from anchorscope.run_folder.remote import RUN
from anchorscope.run_folder.whole import is_partial

AGAIN = "the command that made the run makes it again"
# Kept beside the listing: by its own checksum, by nothing, or made by other commands.
_BESIDE = (RUN, COPY, MANIFEST, OWNER, "view.html")
_NESTED = ("robust", "view-data")  # run folders of their own, and a page's data


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
    entries = read_manifest(path) | read_markers(path)
    yield from _files(path, entries)
    yield from _unlisted(path, entries, finished=bool(info and info.get("finished")))
    for folder in sorted((path / "robust").glob("*")):
        if (folder / RUN).is_file():
            for one in verify_run(folder):
                yield Checked(name=f"robust/{folder.name}/{one.name}", wrong=one.wrong, do=one.do,
                              note=one.note)  # fmt: skip


def _about(info: dict[str, Any]) -> Iterator[Checked]:
    """run.json, and what it says of format, versions and whether the run is finished."""
    format_ = info.get("format", 1)
    yield Checked(name=RUN, note=f"format {format_} of {FORMAT}")
    here = versions()
    other = [
        f"{name} {number} there, {here.get(name, 'none')} here"
        for name, number in info.get("versions", {}).items()
        if here.get(name) != number
    ]
    note = "; ".join(other) + ": last digits may differ" if other else "those installed here"
    yield Checked(name="versions", note=note)
    if not info.get("finished"):
        yield Checked(name="finished", wrong="the run is not finished", do="run its command again")


def _files(path: Path, entries: Entries) -> Iterator[Checked]:
    """Each listed file against its size and checksum."""
    dropped = not (path / STATES).is_dir()
    if dropped and any(name.startswith(f"{STATES}/") for name in entries):
        yield Checked(name=STATES, note="removed after the run; nothing is computed from them")
    for name, entry in sorted(entries.items()):
        if dropped and name.startswith(f"{STATES}/"):
            continue
        wrong = whats_wrong(path, entry)
        yield Checked(name=name, wrong=wrong, do=AGAIN if wrong else "")


def _unlisted(path: Path, entries: Entries, *, finished: bool) -> Iterator[Checked]:
    """Files that no listing speaks of."""
    derived = set(derived_files(path))
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        name = file.relative_to(path).as_posix()
        head = name.split("/")[0]
        if name in entries or name in _BESIDE or head in (*_NESTED, MARKERS):
            continue
        if is_partial(file.name):
            yield Checked(
                name=name, note="left by a writer that was killed; the next one removes it"
            )
        elif file in derived and not finished:
            yield Checked(name=name, note="not listed before the run is finished")
        else:
            yield Checked(name=name, note="not listed: another command or another version wrote it")
    for file in sorted((path / MARKERS).rglob("*.json")):
        name = file.relative_to(path / MARKERS).as_posix().removesuffix(".json")
        if name not in entries:
            yield Checked(name=f"{MARKERS}/{name}.json", wrong="it is damaged", do=AGAIN)
