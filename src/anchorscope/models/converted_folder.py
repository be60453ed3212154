"""Where the conversion of a GGUF file lies, known without torch."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_PEEK = 1 << 20


def cache_folder() -> Path:
    """The folder for converted models: $ANCHORSCOPE_CACHE, or the user's cache folder."""
    given = os.environ.get("ANCHORSCOPE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "anchorscope"


def folder_of(path: Path) -> Path:
    """The folder of safetensors made from the GGUF file at `path`, whether it is there or not."""
    return cache_folder() / f"{path.stem}-{_fingerprint(path)}"


def _fingerprint(path: Path) -> str:
    """A hash of size, header and tail: reading gigabytes at every start would cost seconds."""
    digest = hashlib.sha256(str(path.stat().st_size).encode())
    with path.open("rb") as file:
        digest.update(file.read(_PEEK))
        file.seek(max(0, path.stat().st_size - _PEEK))
        digest.update(file.read(_PEEK))
    return digest.hexdigest()[:16]
