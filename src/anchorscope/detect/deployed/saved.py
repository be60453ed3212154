"""A detector's folder: weights in safetensors, the rest in JSON, a model card.

The files are tied by checksums. Nothing is unpickled: a folder from a stranger can be refused,
but it cannot run code. Sizes come before reading, and every field has a rule.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from anchorscope.detect.deployed.description import Forged, check_description
from anchorscope.detect.kinds import DEPLOYED
from anchorscope.errors import UserError
from anchorscope.run_folder.disk import check_writable, refuse_unsafe, remove_partials, write_atomic

KIND, FORMAT = "anchorscope-detector", 2
WEIGHTS, ABOUT, CARD = "detector.safetensors", "detector.json", "README.md"
FILES = (WEIGHTS, ABOUT, CARD)
MOST_BYTES = {ABOUT: 64 << 20, WEIGHTS: 4 << 30}
_FREE = ("checksum", "licence")  # what the owner may write into detector.json by hand


class Stored(NamedTuple):
    """What a detector's folder holds."""

    tensors: dict[str, np.ndarray]
    about: dict[str, Any]


def write_folder(folder: Path, stored: Stored, card: str) -> None:
    """Write the files, the one that vouches for the others last."""
    check_place(folder)
    if folder.is_dir():
        remove_partials(folder)
    weights = save({name: np.ascontiguousarray(array) for name, array in stored.tensors.items()})
    about = {"kind": KIND, "format": FORMAT, **stored.about}
    about["sha256"] = hashlib.sha256(weights).hexdigest()
    about["checksum"] = _checksum(about)
    text = json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomic(folder / WEIGHTS, weights)
    write_atomic(folder / CARD, card)
    write_atomic(folder / ABOUT, text)


def check_place(folder: Path) -> None:
    """Raise a UserError where a detector cannot be saved: nothing else is written over."""
    check_writable(folder)
    names = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
    names = {name for name in names if not name.startswith(".")}
    if names and not (names <= set(FILES) and names & {WEIGHTS, ABOUT}):
        raise UserError(
            f"'{folder}' exists and is not a detector's folder. Choose another --out, or empty it."
        )


def read_folder(folder: Path) -> Stored:
    """What `write_folder` wrote, its checksums checked; a damaged or foreign folder is refused."""
    refuse_unsafe(folder, FILES)
    try:
        for name, most in MOST_BYTES.items():
            size = (folder / name).stat().st_size
            if size > most:
                raise Forged(f"{name} has {size} bytes, and {most} are read at most")
        text = (folder / ABOUT).read_text(encoding="utf-8")
        about = json.loads(text, parse_constant=_no_number)
        weights = (folder / WEIGHTS).read_bytes()
        _check_sums(about, weights)
        return Stored(load(weights), about)
    except Forged as error:
        raise refused(folder, str(error)) from error
    except FileNotFoundError as error:
        raise refused(folder, f"{Path(str(error.filename)).name} is missing") from error
    except SafetensorError as error:
        raise refused(folder, f"{WEIGHTS} is damaged ({error})") from error
    except (json.JSONDecodeError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise refused(folder, f"{ABOUT} cannot be read ({error})") from error


def read_checked(folder: Path) -> Stored:
    """What `read_folder` gives, with every field and every weight checked against its rule."""
    stored = read_folder(folder)
    name = str(stored.about.get("name"))
    if name not in DEPLOYED:
        raise UserError(
            f"The detector in '{folder}' is of the kind '{name}', which this version does not "
            f"deploy (it deploys {', '.join(DEPLOYED)}). Train it again: `anchorscope detect "
            "train`."
        )
    try:
        check_description(stored.about)
        for name, array in stored.tensors.items():
            if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
                raise Forged(f"the weights '{name}' are not all finite numbers")
    except (Forged, RecursionError) as error:
        raise refused(folder, str(error)) from error
    return stored


def refused(folder: Path, reason: str) -> UserError:
    """The error for a folder that no detector can be read from."""
    return UserError(
        f"No detector could be read from '{folder}': {reason}. Get the folder again, or train the "
        "detector again."
    )


def _no_number(constant: str) -> None:
    raise Forged(f"{ABOUT} holds {constant}, which is no number of JSON")


def _check_sums(about: Any, weights: bytes) -> None:
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise Forged(f"{ABOUT} does not describe a detector of anchorscope")
    if about.get("format") != FORMAT:
        raise Forged(f"it is of format {about.get('format')}, and {FORMAT} is read here")
    if about.get("checksum") != _checksum(about):
        raise Forged(f"{ABOUT} was changed after it was written")
    if about.get("sha256") != hashlib.sha256(weights).hexdigest():
        raise Forged(f"{WEIGHTS} is not the file that {ABOUT} was written for")


def _checksum(about: dict[str, Any]) -> str:
    kept = {name: value for name, value in about.items() if name not in _FREE}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
