"""A detector's folder: weights in safetensors, everything else in JSON, tied by checksums.

Nothing is unpickled: a folder from a stranger can be refused, but it cannot run code.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from anchorscope.errors import UserError

KIND, FORMAT = "anchorscope-detector", 1
WEIGHTS, ABOUT, CARD = "detector.safetensors", "detector.json", "README.md"
_FREE = ("checksum", "licence")  # what the owner may write into detector.json by hand


class Stored(NamedTuple):
    """What a detector's folder holds."""

    tensors: dict[str, np.ndarray]
    about: dict[str, Any]


def write_folder(folder: Path, stored: Stored, card: str) -> None:
    """Writes the files, the one that vouches for the others last."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.ascontiguousarray(of) for name, of in stored.tensors.items()}
    unfinished = folder / f".{WEIGHTS}.partial"
    save_file(arrays, unfinished)
    about = {"kind": KIND, "format": FORMAT, **stored.about}
    about["sha256"] = hashlib.sha256(unfinished.read_bytes()).hexdigest()
    about["checksum"] = _checksum(about)
    os.replace(unfinished, folder / WEIGHTS)
    (folder / CARD).write_text(card, encoding="utf-8")
    unfinished = folder / f".{ABOUT}.partial"
    text = json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, folder / ABOUT)


def read_folder(folder: Path) -> Stored:
    """What `write_folder` wrote; a damaged or foreign folder is refused."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        weights = (folder / WEIGHTS).read_bytes()
    except FileNotFoundError as error:
        raise _refused(folder, f"{Path(str(error.filename)).name} is missing") from error
    except (json.JSONDecodeError, UnicodeDecodeError, NotADirectoryError) as error:
        raise _refused(folder, f"{ABOUT} cannot be read ({error})") from error
    _check(folder, about, weights)
    try:
        return Stored(load(weights), about)
    except SafetensorError as error:
        raise _refused(folder, f"{WEIGHTS} is damaged ({error})") from error


def _check(folder: Path, about: Any, weights: bytes) -> None:
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise _refused(folder, f"{ABOUT} does not describe a detector of anchorscope")
    if about.get("format") != FORMAT:
        raise _refused(folder, f"it is of format {about.get('format')}, and {FORMAT} is read here")
    if about.get("checksum") != _checksum(about):
        raise _refused(folder, f"{ABOUT} was changed after it was written")
    if about.get("sha256") != hashlib.sha256(weights).hexdigest():
        raise _refused(folder, f"{WEIGHTS} is not the file that {ABOUT} was written for")


def _checksum(about: dict[str, Any]) -> str:
    kept = {name: value for name, value in about.items() if name not in _FREE}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _refused(folder: Path, why: str) -> UserError:
    return UserError(
        f"No detector could be read from '{folder}': {why}. Get the folder again, or train the "
        "detector again."
    )
