"""Refuse links, pipes and devices that lead out of a folder which another person packed.

A link may stand for a file of the same folder. Any other would have a stranger's choice of file
read into a report or written over; a pipe blocks its reader, and /dev/zero never ends. The folder
itself may be a link: its owner made that one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from anchorscope.errors import UserError, in_a_line

_DO = "Put a copy of what is meant in its place, or remove it; a folder may be linked as a whole"


def check_inside(folder: Path) -> None:
    """Raise a UserError where anything in a folder leads out of it; before any file is opened."""
    _refuse(odd_entries(folder))


def check_files(folder: Path, names: Iterable[str]) -> None:
    """Raise a UserError where one of these files leads out of the folder.

    The hub's cache keeps the files of a snapshot beside it, as blobs of the same repository.
    """
    snapshots = folder.absolute().parent
    roots = [folder, snapshots.parent / "blobs"] if snapshots.name == "snapshots" else [folder]
    _refuse(_odd((folder / name for name in names), roots))


def odd_entries(folder: Path) -> Iterator[tuple[Path, str]]:
    """Everything in a folder that must not be opened, and why."""
    for here, folders, files in os.walk(folder):
        yield from _odd((Path(here, name) for name in sorted((*folders, *files))), [folder])


def _odd(paths: Iterable[Path], roots: list[Path]) -> Iterator[tuple[Path, str]]:
    inside = [os.path.realpath(root) for root in roots]
    for path in paths:
        target = os.path.realpath(path)
        if path.is_symlink():
            if not any(os.path.commonpath([root, target]) == root for root in inside):
                yield path, f"is a link that leads out of the folder, to {in_a_line(target)}"
            elif not os.path.isfile(path):
                yield path, "is a link to what is no file"
        elif os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            yield path, "is a pipe, a socket or a device, and no file"


def _refuse(odd: Iterator[tuple[Path, str]]) -> None:
    for path, why in odd:
        raise UserError(f"'{in_a_line(path)}' {why}: it is not opened. {_DO}.")
