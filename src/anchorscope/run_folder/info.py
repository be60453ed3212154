"""run.json: what a run was asked for and has noted, with a checksum in it and a copy beside it.

A run's states are worth nothing without it: it says how shards were cut and how questions were
asked. So a bit that flipped in it must show, and must not cost the run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from anchorscope.errors import UserError
from anchorscope.run_folder.remote import RUN

FORMAT = 3  # 2 listed its files in manifest.jsonl; 1 had no markers, and appended to it
COPY = "run-copy.json"  # written after run.json, with the same bytes
_CHECKSUM = "checksum"


class Damaged(UserError):
    """run.json is not as it was written."""


def info_text(info: dict[str, Any]) -> bytes:
    """The bytes of run.json: the info, and a checksum of all of it."""
    content = {name: value for name, value in info.items() if name != _CHECKSUM}
    content[_CHECKSUM] = _checksum(content)
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def read_info(path: Path) -> dict[str, Any] | None:
    """What run.json says, its checksum left out; None where there is none, nor its copy."""
    file = path / RUN
    if not file.is_file():
        if (path / COPY).is_file():
            raise Damaged(f"{file} is missing. {_do(path)}")
        return None
    try:
        info = _parsed(file)
    except (OSError, ValueError) as error:
        raise Damaged(f"{file} is damaged ({error}). {_do(path)}") from error
    if info.get("format", 1) > FORMAT:
        raise UserError(
            f"{path} has the format {info['format']}, and this anchorscope reads up to {FORMAT}. "
            "Install a newer one."
        )
    return info


def readable_info(path: Path) -> dict[str, Any]:
    """What run.json says, or its copy where it is damaged; nothing where neither can be read."""
    for name in (RUN, COPY):
        with suppress(OSError, ValueError):
            return _parsed(path / name)
    return {}


def wrong_with_copy(path: Path) -> str:
    """What is wrong with the copy of a run.json that is whole, in words; "" where nothing is."""
    try:
        _parsed(path / RUN)
    except (OSError, ValueError):
        return ""  # run.json is damaged: that is what has to be said
    try:
        same = (path / COPY).read_bytes() == (path / RUN).read_bytes()
    except OSError:
        return "it is missing"
    return "" if same else f"it is another than {RUN}"


def _parsed(file: Path) -> dict[str, Any]:
    """The content of run.json or its copy; a ValueError says what is wrong with it."""
    info = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(info, dict) or not isinstance(info.get("format", 1), int):
        raise ValueError("it does not describe a run")
    # Folders of earlier versions have no checksum, nor has a file whose reader took the line out.
    checksum = info.pop(_CHECKSUM, None)
    if checksum is not None and checksum != _checksum(info):
        raise ValueError(
            "it was changed after it was written; if you did that, remove its line "
            f'"{_CHECKSUM}" too'
        )
    return info


def _do(path: Path) -> str:
    """What to do where run.json is not whole."""
    try:
        _parsed(path / COPY)
    except (OSError, ValueError):
        return "Remove the folder, or choose another --out."
    return (
        f"{COPY} beside it is a whole copy: put it in its place (cp {path / COPY} {path / RUN}), "
        "and the same command continues."
    )


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_described(info: Mapping[str, Any], file: Path) -> None:
    """Raises where run.json names no model and datasets, or its parts are not of their kind."""
    model, datasets = info.get("model"), info.get("datasets")
    if model is None or datasets is None:
        raise UserError(f"'{file}' names no model or datasets. Run its command again.")
    if not _named(model):
        raise _odd(file, "model", model)
    if not isinstance(datasets, list) or not datasets or not all(map(_named, datasets)):
        raise _odd(file, "datasets", datasets)
    for name in ("config", "identity", "versions", "stages"):
        if not isinstance(info.get(name) or {}, Mapping):
            raise _odd(file, name, info[name])
    for name, stage in (info.get("stages") or {}).items():
        if not isinstance(stage, Mapping) or not all(map(_is_number, stage.values())):
            raise _odd(file, f"stage {name}", stage)
    for name in ("blocks", "width"):
        if not (model.get(name) is None or isinstance(model[name], int)):
            raise _odd(file, f"model's {name}", model[name])
    names = [part["name"] for part in datasets]
    if len(set(names)) < len(names):
        raise _odd(file, "datasets", names)
    for part in datasets:
        asked, dropped = part.get("questions"), part.get("dropped") or {}
        if not (asked is None or isinstance(asked, int)) or not isinstance(dropped, Mapping):
            raise _odd(file, "datasets", part)


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int | float)


def _named(part: object) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("name"), str)


def _odd(file: Path, name: str, given: object) -> UserError:
    text = repr(given)
    shown = text if len(text) <= 60 else text[:57] + "..."
    return UserError(
        f"'{file}' describes no run: its {name} is {shown}. Get the folder again, or run its "
        "command into a new one."
    )
