"""hub:ORG/NAME[:CONFIG][:SPLIT], the address of any dataset on the hub.

A row: whatever its columns are; `--columns` says which of them are ours. The hub's scripts are
never run (`datasets` from version 4 on cannot), so only sets with data files can be read.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from anchorscope.datasets.from_file import drafts
from anchorscope.datasets.hub.columns import Columns
from anchorscope.datasets.source import Draft, HubPlace, Row, Source
from anchorscope.errors import UserError

SCHEME = "hub:"
SHAPE = "hub:ORG/NAME, hub:ORG/NAME:SPLIT, or hub:ORG/NAME:CONFIG:SPLIT"
# A single word behind the name is a split if it is one of these, else a config.
SPLITS = ("test", "validation", "dev", "eval", "train")  # the first that is there is taken


def read_address(text: str) -> tuple[str, str | None, str | None]:
    """Path, config and split of an address; a folder that was cloned from the hub is a path too."""
    path, *parts = text.removeprefix(SCHEME).split(":")
    if len(parts) > 2 or not all([path, *parts]) or not (_is_name(path) or os.path.isdir(path)):
        raise UserError(f"'{text}' is no address of a dataset. Accepted: {SHAPE}.")
    if len(parts) == 1:
        return (path, None, parts[0]) if parts[0] in SPLITS else (path, parts[0], None)
    config, split = parts or (None, None)
    return path, config, split


def _is_name(path: str) -> bool:
    return len(path.split("/")) == 2 and not path.startswith((".", "/", "~"))


def from_address(text: str, columns: Columns | None) -> tuple[Source, list[Draft]]:
    """The dataset at an address and its questions as drafts; without columns they must be ours."""
    path, config, split = read_address(text)
    try:
        place, rows = _rows(HubPlace(path=path, config=config, split=split or "", columns=()))
    except ImportError as error:
        raise UserError(
            f"{text} comes through the package 'datasets', which is not installed. Install it, or "
            "give a file."
        ) from error
    except UserError:
        raise
    except Exception as error:  # the library has no one class for "could not be reached"
        reason = next(iter(str(error).strip().splitlines()), "").rstrip(". ")
        raise UserError(
            f"{text} could not be read from the hub ({type(error).__name__}: {reason}). Accepted: "
            f"{SHAPE}, of a dataset whose data files can be reached from here."
        ) from error
    if not rows:
        raise UserError(f"{text} has no rows in the split {place.split}. Name another split.")
    where = f"{path}, {place.split}"
    if columns is not None:
        columns.check(rows[0], where)
        rows = [columns.normal(row) for row in rows]
    else:
        _check_ours(rows[0], where)
    name = "-".join([Path(path).name, *([config] if config else [])]).replace(":", "-")
    return Source(name=name, title=name), drafts(rows, name, place.split, where)


def _check_ours(row: Row, where: str) -> None:
    if "question" not in row or not {"answers", "answer"} & row.keys():
        Columns({"question": "question", "answers": "answers"}).check(row, where)


def _rows(place: HubPlace) -> tuple[HubPlace, list[Row]]:
    """The place with its split settled, and its rows."""
    from datasets import get_dataset_split_names, load_dataset  # PyPI's, not ours; slow to import

    if not place.split:
        there = get_dataset_split_names(place.path, place.config)
        split = next((name for name in SPLITS if name in there), there[0])
        place = replace(place, split=split)
    dataset = load_dataset(place.path, place.config, split=place.split)
    return place, [dict(row) for row in dataset]
