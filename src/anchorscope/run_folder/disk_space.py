"""How much disk a run takes, said before it is filled, and refused where there is not as much."""

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
    """Bytes of the states that so many passes leave, those of the answers themselves included."""
    return float(questions * blocks * width * _STATE * passes)


def disk_bytes(questions: int, blocks: int, width: int, passes: int) -> float:
    """Bytes of a run folder."""
    rest = questions * (2 * blocks * _ROW + _SAMPLE) + _FIXED
    return state_bytes(questions, blocks, width, passes) + rest


def check_writable(folder: Path) -> None:
    """Raise a UserError where a folder cannot be made or written to, without making it."""
    there = existing(folder)
    if not there.is_dir():
        raise UserError(f"'{there}' is a file, so '{folder}' cannot be a folder. Choose another.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"'{there}' cannot be written to. Choose another --out.")


def existing(folder: Path) -> Path:
    """The folder itself, or the nearest above it that is there."""
    whole = folder.expanduser().absolute()
    return next(place for place in (whole, *whole.parents) if place.exists())


def check_room(folder: Path, needed: float) -> str:
    """What a run will take of the disk, in a sentence; an error where that is not free.

    What a begun run has written already counts as there.
    """
    there = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    free, more = shutil.disk_usage(existing(folder)).free, max(0.0, needed - there)
    if more > free:
        raise UserError(
            f"{folder} needs about {more / GB:.1f} GB more, and {free / GB:.1f} GB are free there. "
            "Choose another --out, or ask fewer questions (--limit)."
        )
    return f"{folder} will take about {needed / GB:.2f} GB"
