"""Where the conversion of a GGUF file lies, known without torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from anchorscope.run_folder.remote import cache_folder

# A file that was changed anywhere for longer than the gaps is another file: 16 MiB in 512 pieces
# leaves gaps of half a MiB in 253 MB, and of 8 MiB in 4 GB.
_PIECES, _PIECE = 512, 1 << 15
_FORMAT = 4  # of the converted folder; another number makes every file be converted again


def folder_of(path: Path) -> Path:
    """The folder of safetensors made from the GGUF file at `path`, whether it is there or not."""
    return cache_folder() / f"{path.stem}-{_fingerprint(path)}"


def _fingerprint(path: Path) -> str:
    """A hash of the size and of pieces from all over the file: gigabytes would cost seconds."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{_FORMAT}:{size}".encode())
    with path.open("rb") as file:
        for piece in range(_PIECES):
            file.seek(max(0, size - _PIECE) * piece // (_PIECES - 1))
            digest.update(file.read(_PIECE))
    return digest.hexdigest()[:16]
