"""run.json: what a run was asked for and has noted, with a checksum in it.

A run's states are worth nothing without it: it says how shards were cut and how questions were
asked. So a bit that flipped in it must show.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, StrictInt, StrictStr, ValidationError

from anchorscope.errors import UserError

RUN = "run.json"
FORMAT = 3  # 2 listed its files beside run.json; 1 had no markers
_CHECKSUM = "checksum"


def info_text(info: Mapping[str, Any]) -> bytes:
    """The bytes of run.json: the info, and a checksum of all of it."""
    content = {name: value for name, value in info.items() if name != _CHECKSUM}
    content[_CHECKSUM] = _checksum(content)
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def read_info(path: Path) -> dict[str, Any] | None:
    """What run.json says, its checksum left out; None where there is none."""
    file = path / RUN
    if not file.is_file():
        return None
    try:
        info = _parsed(file)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{file} is damaged ({error}). Put a backup of it in its place, or remove the folder, "
            "or choose another --out."
        ) from error
    if info.get("format", 1) > FORMAT:
        raise UserError(
            f"{path} has the format {info['format']}, and this anchorscope reads up to {FORMAT}. "
            "Install a newer one."
        )
    return info


def readable_info(path: Path) -> dict[str, Any]:
    """What run.json says; nothing where it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        return _parsed(path / RUN)
    return {}


def _parsed(file: Path) -> dict[str, Any]:
    """The content of run.json; a ValueError says what is wrong with it."""
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


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class _Model(BaseModel):
    name: StrictStr
    blocks: StrictInt | None = None
    width: StrictInt | None = None


class _Dataset(BaseModel):
    name: StrictStr
    questions: StrictInt | None = None
    dropped: dict[str, Any] | None = None


def _differ(datasets: list[_Dataset]) -> list[_Dataset]:
    if len({dataset.name for dataset in datasets}) < len(datasets):
        raise ValueError("two datasets have one name")
    return datasets


class _Described(BaseModel):
    """The parts of run.json that every reader relies on."""

    model: _Model
    datasets: Annotated[list[_Dataset], Field(min_length=1), AfterValidator(_differ)]
    config: dict[str, Any] | None = None
    identity: dict[str, Any] | None = None
    versions: dict[str, Any] | None = None
    stages: dict[str, dict[str, float | list[float] | None]] | None = None


def check_described(info: Mapping[str, Any], file: Path) -> None:
    """Raise a UserError where run.json names no model and datasets, or says nonsense of them."""
    if info.get("model") is None or info.get("datasets") is None:
        raise UserError(f"'{file}' names no model or datasets. Run its command again.")
    try:
        _Described.model_validate(info)
    except ValidationError as error:
        first = error.errors()[0]
        text = repr(first["input"])
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise UserError(
            f"'{file}' describes no run: its {' '.join(map(str, first['loc']))} is {shown}. Get "
            "the folder again, or run its command into a new one."
        ) from error
