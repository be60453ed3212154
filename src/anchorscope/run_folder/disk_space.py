"""The disk space of a run: estimated before it begins, and refused where the disk has less."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from anchorscope.errors import UserError

GB = 1e9
_STATE = 2  # bytes of a number of a state, in half precision
_ROW = 40  # bytes of pathways.parquet, a question, layer and mode
_SAMPLE = 2000  # bytes of a question's row in samples.parquet and answers/
_FIXED = 6e6  # bytes of figures, report, tables


def state_bytes(questions: int, blocks: int, width: int, passes: int) -> float:
    """Bytes of the states of all passes, those of the answers themselves included."""
    return float(questions * blocks * width * _STATE * passes)


def disk_bytes(questions: int, blocks: int, width: int, passes: int) -> float:
    """Bytes of a run folder."""
    rest = questions * (2 * blocks * _ROW + _SAMPLE) + _FIXED
    return state_bytes(questions, blocks, width, passes) + rest


def check_writable(folder: Path) -> None:
    """Raise a UserError where a folder cannot be made or written to, without making it."""
    place = existing(folder)
    if not place.is_dir():
        raise UserError(f"'{place}' is a file, so '{folder}' cannot be a folder. Choose another.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError(f"'{place}' cannot be written to. Choose another --out.")


def existing(folder: Path) -> Path:
    """The folder itself, or the nearest above it that exists."""
    path = folder.expanduser().absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def check_room(folder: Path, needed: float) -> str:
    """A sentence about the disk space that a run needs; a UserError where that is not free.

    Counted is what a begun run has not written yet.
    """
    written = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    free, more = shutil.disk_usage(existing(folder)).free, max(0.0, needed - written)
    if more > free:
        raise UserError(
            f"{folder} needs about {more / GB:.1f} GB more, and {free / GB:.1f} GB are free there. "
            "Choose another --out, or ask fewer questions (--limit)."
        )
    return f"{folder} will take about {needed / GB:.2f} GB"
