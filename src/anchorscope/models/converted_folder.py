"""The cached conversion of a GGUF file: where it is, and whether it is whole. Needs no torch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import xxhash

from anchorscope.run_folder.remote import cache_folder
from anchorscope.run_folder.whole import sync_folder

_FORMAT = 5  # of the converted folder; another number makes every file be converted again
_CHECKSUMS = "checksums.json"
_PIECE = 1 << 22  # bytes read at a time


def folder_of(path: Path) -> Path:
    """The folder of safetensors made from the GGUF file at `path`, whether it is there or not.

    It is named by every byte of the file.
    """
    return cache_folder() / f"{path.stem}-{_FORMAT}-{file_hash(path)[:16]}"


def file_hash(path: Path) -> str:
    """A hash of every byte of a file, at the speed of the disk."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def seal_folder(folder: Path) -> None:
    """Writes the hashes of all files of a converted folder, and brings all of it to the disk."""
    files = sorted(folder.iterdir())
    checksums = folder / _CHECKSUMS
    checksums.write_text(json.dumps({file.name: file_hash(file) for file in files}, indent=2))
    for file in (*files, checksums):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    sync_folder(folder)


def damaged_file(folder: Path) -> str | None:
    """The first file of a converted folder that is not as it was written; None: all are."""
    try:
        hashes = dict(json.loads((folder / _CHECKSUMS).read_text()))
    except (OSError, ValueError, TypeError):
        return _CHECKSUMS
    for name, expected in hashes.items():
        file = folder / name
        if not file.is_file() or file_hash(file) != expected:
            return name
    return None
