"""Which files of a run are done: each by its own marker, and all of them in one listing."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

MANIFEST, MARKERS = "manifest.jsonl", "markers"
Entries = dict[str, dict[str, Any]]  # by name: name, bytes, sha256


def read_manifest(path: Path) -> Entries:
    """The files of the merged listing; in the first format it was appended to."""
    manifest, entries = path / MANIFEST, {}
    if manifest.exists():
        for line in manifest.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):  # a line a kill tore off: its file is done again
                entry = json.loads(line)
                entries[entry["name"]] = entry
    return entries


def read_markers(path: Path) -> Entries:
    """The files that have a marker."""
    entries = (read_marker(file) for file in (path / MARKERS).rglob("*.json"))
    return {entry["name"]: entry for entry in entries if entry is not None}


def read_marker(file: Path) -> dict[str, Any] | None:
    """What a marker says; None where it is not there, or torn."""
    with suppress(OSError, json.JSONDecodeError):
        return json.loads(file.read_text(encoding="utf-8"))
    return None


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
