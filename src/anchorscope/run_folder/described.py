"""What run.json must say before anybody relies on it: a folder may come from a stranger."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anchorscope.errors import UserError


def check_described(info: Mapping[str, Any], file: Path) -> None:
    """Raises where run.json names no model and datasets, or its parts are not of their kind."""
    model, datasets = info.get("model"), info.get("datasets")
    if model is None or datasets is None:
        raise UserError(f"'{file}' names no model or datasets. Run its command again.")
    if not _named(model):
        raise _odd(file, "model", model)
    if not isinstance(datasets, list) or not datasets or not all(map(_named, datasets)):
        raise _odd(file, "datasets", datasets)
    for name in ("config", "identity"):
        if not isinstance(info.get(name) or {}, Mapping):
            raise _odd(file, name, info[name])


def _named(part: object) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("name"), str)


def _odd(file: Path, name: str, given: object) -> UserError:
    text = repr(given)
    shown = text if len(text) <= 60 else text[:57] + "..."
    return UserError(
        f"'{file}' describes no run: its {name} is {shown}. Get the folder again, or run its "
        "command into a new one."
    )
