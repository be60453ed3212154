"""Links, pipes and devices in a folder that somebody else packed: none is followed out of it.

A link may stand for a file of the same folder. What leads elsewhere would have another file read
into a report, or written over; a pipe would be waited for, and `/dev/zero` read without end. The
folder itself may be a link: its owner made that one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from anchorscope.errors import UserError, in_a_line

_DO = "Put a copy of what is meant in its place, or remove it; a folder may be linked as a whole"


def check_inside(folder: Path) -> None:
    """Raise a UserError where anything in a folder leads out of it, or is neither file nor folder.

    To be called before the first file of a folder is opened.
    """
    _refuse(odd_entries(folder))


def check_files(folder: Path, names: Iterable[str]) -> None:
    """The same for these files of a folder alone, whatever else is in it.

    The hub's cache keeps what its snapshots show beside them, as blobs of the same repository.
    """
    roots = [os.path.realpath(folder)]
    if folder.absolute().parent.name == "snapshots":
        roots.append(os.path.realpath(folder.absolute().parents[1] / "blobs"))
    _refuse(_odd([folder / name for name in names], roots))


def odd_entries(folder: Path) -> Iterator[tuple[Path, str]]:
    """What in a folder must not be opened, and why."""
    roots, waiting = [os.path.realpath(folder)], [folder]
    while waiting:
        try:
            entries = sorted(waiting.pop().iterdir())
        except OSError:  # gone by now, or closed to us: whoever needs it will say so
            continue
        waiting += [path for path in entries if path.is_dir() and not path.is_symlink()]
        yield from _odd(entries, roots)


def _odd(paths: Iterable[Path], roots: Sequence[str]) -> Iterator[tuple[Path, str]]:
    for path in paths:
        try:
            kind = os.lstat(path).st_mode
        except OSError:  # gone by now, or never there
            continue
        if stat.S_ISLNK(kind):
            why = _of_link(path, roots)
        else:
            plain = stat.S_ISREG(kind) or stat.S_ISDIR(kind)
            why = "" if plain else "is a pipe, a socket or a device, and no file"
        if why:
            yield path, why


def _of_link(path: Path, roots: Sequence[str]) -> str:
    """What is wrong with a link; nothing where it stands for a file below one of the roots."""
    try:
        kind = os.stat(path).st_mode
    except OSError as error:
        return f"is a link that leads nowhere ({error.strerror})"
    target = os.path.realpath(path)
    if not any(os.path.commonpath([root, target]) == root for root in roots):
        return f"is a link that leads out of the folder, to {in_a_line(target)}"
    return "" if stat.S_ISREG(kind) else "is a link to what is no file"


def _refuse(odd: Iterator[tuple[Path, str]]) -> None:
    for path, why in odd:
        raise UserError(f"'{in_a_line(path)}' {why}: it is not opened. {_DO}.")
