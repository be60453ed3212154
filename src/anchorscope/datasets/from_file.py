"""Read a file of questions and recognise its dataset."""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, cast

from anchorscope.datasets.columns import Columns, check_columns, drafts
from anchorscope.datasets.source import Draft, Row, Source
from anchorscope.errors import UserError, unknown

# Words of a file's name that say which part of a dataset it is, not which dataset.
PARTS = re.compile(
    "dev|train|test|validation|valid|val|open|qa|unfiltered|distractor|fullwiki|simplified|v?[0-9]+"
)
SPLIT_WORDS = ("train", "dev", "validation", "test")
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
                rows.append(row if isinstance(row, dict) else "is no JSON object")
            except ValueError:
                rows.append("is no JSON")
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
