"""Read question sets from the hub, by name or by address: hub:ORG/NAME[:CONFIG][:SPLIT].

Uses the PyPI package `datasets`. The hub's scripts are never run (`datasets` from version 4 on
cannot), so only sets with data files can be read. A dataset at an address may have any columns;
`--columns` maps them to ours.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from anchorscope.datasets.columns import Columns, check_columns, drafts
from anchorscope.datasets.source import Draft, HubPlace, Row, Source
from anchorscope.errors import UserError

SCHEME = "hub:"
SHAPE = "hub:ORG/NAME, hub:ORG/NAME:SPLIT, or hub:ORG/NAME:CONFIG:SPLIT"
# A single word behind the name is a split if it is one of these, else a config.
SPLITS = ("test", "validation", "dev", "eval", "train")  # in order of preference
OWN = (
    "a .jsonl, .jsonl.gz, .json, .csv, .tsv or .parquet file with the columns question and answers"
)


def from_hub(source: Source, place: HubPlace) -> list[Draft | None]:
    """Fetch a named set from the hub, as drafts."""
    try:
        rows, _ = _rows(place.path, place.config, place.split, place.columns)
    except Exception as error:  # the library has no one class for "could not be reached"
        raise UserError(
            f"{source.title} ({place.path}) could not be reached on the hub "
            f"({type(error).__name__}). Try again with a connection, or give a file: "
            f"{source.formats}, or {OWN}."
        ) from error
    return drafts([source.normal(row) for row in rows], source.name, place.split, place.path)


def read_address(text: str) -> tuple[str, str | None, str | None]:
    """Parse an address into path, config and split; the path may be a cloned folder."""
    path, *parts = text.removeprefix(SCHEME).split(":")
    is_name = len(path.split("/")) == 2 and not path.startswith((".", "/", "~"))
    if len(parts) > 2 or not all([path, *parts]) or not (is_name or os.path.isdir(path)):
        raise UserError(f"'{text}' is no address of a dataset. Accepted: {SHAPE}.")
    if len(parts) == 1:
        return (path, None, parts[0]) if parts[0] in SPLITS else (path, parts[0], None)
    config, split = parts or (None, None)
    return path, config, split


def from_address(
    text: str, columns: Columns | None, *, skip_bad_rows: bool = False
) -> tuple[Source, list[Draft | None]]:
    """Fetch the dataset at an address, as drafts; without `columns` its columns must be ours."""
    path, config, split = read_address(text)
    try:
        rows, split = _rows(path, config, split)
    except Exception as error:  # as above
        reason = next(iter(str(error).strip().splitlines()), "").rstrip(". ")
        raise UserError(
            f"{text} could not be read from the hub ({type(error).__name__}: {reason}). Accepted: "
            f"{SHAPE}, of a dataset whose data files can be reached from here."
        ) from error
    if not rows:
        raise UserError(f"{text} has no rows in the split {split}. Name another split.")
    where = f"{path}, {split}"
    name = "-".join([Path(path).name, *([config] if config else [])]).replace(":", "-")
    if columns is not None:
        columns.check(rows[0], where)
        rows = [columns.normal(row) for row in rows]
    check_columns(rows, where)
    made = drafts(rows, name, split, where, skip_bad_rows=skip_bad_rows)
    return Source(name=name, title=name), made


def _rows(
    path: str, config: str | None, split: str | None, columns: Sequence[str] | None = None
) -> tuple[list[Row], str]:
    """Fetch rows, and their split: by default the first of SPLITS that the dataset has."""
    # PyPI's package, not ours. Slow to import.
    from datasets import get_dataset_split_names, load_dataset
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    if split is None:
        splits = get_dataset_split_names(path, config)
        split = next((name for name in SPLITS if name in splits), splits[0])
    dataset = load_dataset(path, config, split=split)
    dataset = dataset.select_columns(list(columns)) if columns else dataset
    return [dict(row) for row in dataset], split
