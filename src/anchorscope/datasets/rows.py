"""Read question sets from a file, whose dataset is recognised, or from the hub.

The address of a set on the hub is hub:ORG/NAME[:CONFIG][:SPLIT]. It is read with the PyPI package
`datasets`. The hub's scripts are never run (`datasets` from version 4 on cannot), so only sets with
data files can be read. A dataset at an address may have any columns; `--columns` maps them to ours.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from sys import intern
from typing import IO, cast

from anchorscope.datasets.columns import Columns, check_columns, drafts
from anchorscope.datasets.source import Draft, HubPlace, Row, Source
from anchorscope.errors import UserError, unknown, user_path

# Words of a file's name that say which part of a dataset it is, not which dataset.
PARTS = re.compile(
    "dev|train|test|validation|valid|val|open|qa|unfiltered|distractor|fullwiki|simplified|v?[0-9]+"
)
SPLIT_WORDS = ("train", "dev", "validation", "test")
SCHEME = "hub:"
SHAPE = "hub:ORG/NAME, hub:ORG/NAME:SPLIT, or hub:ORG/NAME:CONFIG:SPLIT"
# A single word behind the name is a split if it is one of these, else a config.
SPLITS = ("test", "validation", "dev", "eval", "train")  # in order of preference
OWN = (
    "a .jsonl, .jsonl.gz, .json, .csv, .tsv or .parquet file with the columns question and answers"
)
# pyarrow raises NotImplementedError, KeyError and TypeError for types it cannot convert.
NOT_READABLE = (
    OSError, EOFError, ValueError, RecursionError, csv.Error, zlib.error, NotImplementedError,
    KeyError, TypeError, OverflowError, MemoryError,
)  # fmt: skip
# The most that is read: a few compressed kilobytes may unpack into terabytes.
MOST_LINE, MOST_TEXT, MOST_ROWS = 1 << 24, 1 << 32, 50_000_000


def from_file(
    path: Path,
    sources: Iterable[Source],
    columns: Columns | None = None,
    *,
    skip_bad_rows: bool = False,
) -> tuple[Source, list[Draft | None]]:
    """Read the file's questions as drafts, and find its dataset among `sources`.

    None instead of a draft where a bad row is skipped.
    """
    rows = _read(path)
    present = next((row for row in rows if not isinstance(row, str)), {})
    if columns is not None:
        columns.check(present, path.name)
        rows = [row if isinstance(row, str) else columns.normal(row) for row in rows]
        present = columns.normal(present)
    source = recognise(path, present, sources)
    rows = [row if isinstance(row, str) else source.normal(row) for row in rows]
    if present:
        check_columns([row for row in rows if not isinstance(row, str)], path.name)
    return source, drafts(rows, source.name, _split(path), path.name, skip_bad_rows=skip_bad_rows)


def recognise(path: Path, row: Row, sources: Iterable[Source]) -> Source:
    """Find the dataset by a row's columns or the file's name, else name one after the file."""
    sources = tuple(sources)
    # The file's name without the words for its part: "NQ-open.dev" is "nq".
    name = "".join(word for word in _words(path) if not PARTS.fullmatch(word))
    matches = [s for s in sources if any(mark <= row.keys() for mark in s.marks)]
    matches += [s for s in sources if name in s.stems]
    own = stem(path).replace(":", "-")  # a colon would break the id in the wrong place
    return matches[0] if matches else Source(name=own, title=own)


def _words(path: Path) -> list[str]:
    return re.findall(r"[a-z0-9]+", stem(path).lower())


def _split(path: Path) -> str:
    """Guess the split from the file's name, for rows that name none."""
    split = next((word for word in SPLIT_WORDS if word in _words(path)), "all")
    return split.replace("validation", "dev")


def read_rows(path: Path) -> list[Row]:
    """Read the file's rows as dictionaries; a UserError for a row that cannot be read."""
    rows = _read(path)
    for number, row in enumerate(rows, 1):
        if isinstance(row, str):
            raise _unreadable(path, f"row {number} {row}")
    return cast("list[Row]", rows)


def rows_by_id(path: str, holds: str, columns: str) -> dict[str, Row]:
    """Read the rows of a file by question id; a UserError for a missing file, or id, or a second.

    `holds` and `columns` say what is in such a file.
    """
    file = user_path(path)
    if not file.is_file():
        raise UserError(
            f"There is no file '{path}' with {holds}. Give a .csv or .jsonl file with the columns "
            f"{columns}."
        )
    rows: dict[str, Row] = {}
    for number, row in enumerate(read_rows(file), 1):
        id = str(row.get("id") or "").strip()
        if not id:
            raise UserError(f"Row {number} of {file.name} lacks an id. Columns needed: {columns}.")
        if id in rows:
            raise UserError(
                f"Row {number} of {file.name} has the id '{id}' a second time. Give each id once."
            )
        rows[id] = row
    return rows


def _read(path: Path) -> list[Row | str]:
    """Read the file's rows; a row that cannot be read is replaced by the reason."""
    reader = READERS.get(extension(path))
    if reader is None:
        raise unknown("kind of file", path.name, READERS)
    try:
        rows = reader(path)
    except NOT_READABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _unreadable(path, reason) from error
    if not rows:
        raise UserError(f"{path.name} has no rows. It needs at least one question.")
    return rows


def _unreadable(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path.name} could not be read as {extension(path)}: {reason}. "
        "Is it whole, and does its extension say what it is?"
    )


def extension(path: Path) -> str:
    """The file's extension in lower case, .gz with the one before it."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    return "".join(suffixes) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


def stem(path: Path) -> str:
    """The file's name without its extension."""
    return path.name[: len(path.name) - len(extension(path))]


def _jsonl(path: Path) -> list[Row | str]:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    rows: list[Row | str] = []
    with opened(path, "rt", encoding="utf-8-sig") as file:
        for line in filter(str.strip, _bounded_lines(cast(IO[str], file))):
            try:
                row = json.loads(line)
            except ValueError:
                rows.append("is no JSON")
                continue
            # One copy of the columns' names, which are a third of a row's memory.
            own = isinstance(row, dict)
            rows.append({intern(k): v for k, v in row.items()} if own else "is no JSON object")
    return rows


def _bounded_lines(file: IO[str]) -> Iterator[str]:
    """Read a file line by line; a ValueError above MOST_LINE or MOST_TEXT characters."""
    read = 0
    while line := file.readline(MOST_LINE + 1):
        read += len(line)
        if len(line) > MOST_LINE or read > MOST_TEXT:
            most = f"{MOST_LINE} characters in a line and {MOST_TEXT} in all"
            raise ValueError(f"it holds more than is read: {most}")
        yield line


def _json(path: Path) -> list[Row | str]:
    with path.open(encoding="utf-8-sig") as file:
        content = json.load(file)
    # TriviaQA has an outer object.
    rows = content.get("Data") if isinstance(content, Mapping) else content
    if not isinstance(rows, list):
        raise ValueError("it holds no list of objects")
    return [row if isinstance(row, dict) else "is no JSON object" for row in rows]


def _table(path: Path, delimiter: str = ",") -> list[Row | str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, delimiter=delimiter, strict=True)
        return ["has more fields than the header" if None in row else row for row in rows]


def _parquet(path: Path) -> list[Row | str]:
    import pyarrow.parquet  # slow to import, and needed for this one kind of file only

    about = pyarrow.parquet.read_metadata(path)
    size = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
    if about.num_rows > MOST_ROWS or size > MOST_TEXT:
        raise ValueError(f"it holds more than is read: {MOST_ROWS} rows and {MOST_TEXT} bytes")
    return pyarrow.parquet.read_table(path).to_pylist()


READERS: dict[str, Callable[[Path], list[Row | str]]] = {
    ".jsonl": _jsonl,
    ".jsonl.gz": _jsonl,
    ".json": _json,
    ".csv": _table,
    ".tsv": partial(_table, delimiter="\t"),
    ".parquet": _parquet,
}


# The hub.


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
    return drafts([*map(source.normal, rows)], source.name, place.split, place.path)


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
