"""Read a file of questions: its rows, which dataset it is, and the rows as drafts."""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, cast

from anchorscope.datasets.columns import Columns, Key, check_columns, draft, key_of
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
MOST_LINE, MOST_TEXT, MOST_ROWS = 1 << 24, 1 << 32, 50_000_000


def from_file(
    path: Path, sources: Iterable[Source], columns: Columns | None = None
) -> tuple[Source, list[Draft]]:
    """The file's dataset, one of `sources` or the file's own, and its questions as drafts."""
    rows = read_rows(path)
    if columns is not None:
        columns.check(rows[0], path.name)
        rows = [columns.normal(row) for row in rows]
    source = recognise(path, rows, sources)
    normal = [source.normal(row) for row in rows]
    check_columns(normal, path.name)
    return source, drafts(normal, source.name, _split(path), path.name)


def drafts(rows: Sequence[Row], dataset: str, split: str, where: str) -> list[Draft]:
    """One draft a row; rows are counted from 1 in errors, the header not counted."""
    keys = _keys(rows, split, where)
    made = [
        draft(row, key, dataset=dataset, where=f"Row {number} of {where}")
        for number, (row, key) in enumerate(zip(rows, keys, strict=True), 1)
    ]
    with_subject = [row for row in rows if row.get("subject") or row.get("subjects")]
    if with_subject and not any(one.question.subjects for one in made):
        raise UserError(
            f"None of the {len(with_subject)} subjects of {where} stands in its question. "
            "A subject is the part of the question that names what is asked about, as written "
            "there."
        )
    return made


def _keys(rows: Sequence[Row], split: str, where: str) -> list[Key]:
    """Split and id of every row; an error where two rows of one split give the same id."""
    keys: list[Key] = []
    seen: dict[Key, int] = {}
    for number, row in enumerate(rows, 1):
        key = key_of(row, split, f"Row {number} of {where}")
        keys.append(key)
        if key.id and seen.setdefault(key, number) != number:
            raise UserError(
                f"Rows {seen[key]} and {number} of {where} have the same id '{key.id}'. "
                "Give each row its own, or leave the column out."
            )
    return keys


def recognise(path: Path, rows: Sequence[Row], sources: Iterable[Source]) -> Source:
    """The dataset that the columns or the file's name say, else one named after the file."""
    sources = tuple(sources)
    columns = set(rows[0])
    # The file's name without the words for its part: "NQ-open.dev" is "nq".
    name = "".join(word for word in _words(path) if not PARTS.fullmatch(word))
    by_columns = (s for s in sources if any(mark <= columns for mark in s.marks))
    by_name = (s for s in sources if name in s.stems)
    own = stem(path).replace(":", "-")  # a colon would break the id in the wrong place
    return next(by_columns, None) or next(by_name, None) or Source(name=own, title=own)


def _words(path: Path) -> list[str]:
    return re.findall(r"[a-z0-9]+", stem(path).lower())


def _split(path: Path) -> str:
    """The split that the file's name says, for rows that say none."""
    split = next((word for word in SPLIT_WORDS if word in _words(path)), "all")
    return split.replace("validation", "dev")


def read_rows(path: Path) -> list[Row]:
    """The rows of the file, column -> value, in the file's order."""
    reader = READERS.get(extension(path))
    if reader is None:
        raise unknown("kind of file", path.name, READERS)
    try:
        rows = reader(path)
    except NOT_READABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{path.name} could not be read as {extension(path)}: {reason}. "
            "Is it whole, and does its extension say what it is?"
        ) from error
    if not rows:
        raise UserError(f"{path.name} has no rows. It needs at least one question.")
    return rows


def extension(path: Path) -> str:
    """The file's extension in lower case, .gz with the one before it."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    return "".join(suffixes) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


def stem(path: Path) -> str:
    """The file's name without its extension."""
    return path.name[: len(path.name) - len(extension(path))]


def _jsonl(path: Path) -> list[Row]:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig") as file:
        lines = enumerate(_lines(cast(IO[str], file)), 1)
        return [_object(line, number) for number, line in lines if line.strip()]


def _lines(file: IO[str]) -> Iterator[str]:
    """The lines of a file, within bounds: a few packed kilobytes may unpack into terabytes."""
    read = 0
    while line := file.readline(MOST_LINE + 1):
        read += len(line)
        if len(line) > MOST_LINE or read > MOST_TEXT:
            most = f"{MOST_LINE} characters in a line and {MOST_TEXT} in all"
            raise ValueError(f"it holds more than is read: {most}")
        yield line


def _object(line: str, number: int) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is no JSON") from error
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is no JSON object")
    return row


def _json(path: Path) -> list[Row]:
    with path.open(encoding="utf-8-sig") as file:
        content = json.load(file)
    # TriviaQA has an outer object.
    rows = content.get("Data") if isinstance(content, Mapping) else content
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it holds no list of objects")
    return rows


def _table(path: Path, delimiter: str = ",") -> list[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows: list[Row] = []
        for number, row in enumerate(csv.DictReader(file, delimiter=delimiter, strict=True), 1):
            if None in row:
                raise ValueError(f"row {number} has more fields than the header")
            rows.append(row)
    return rows


def _parquet(path: Path) -> list[Row]:
    import pyarrow.parquet  # slow to import, and needed for this one kind of file only

    about = pyarrow.parquet.read_metadata(path)
    size = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
    if about.num_rows > MOST_ROWS or size > MOST_TEXT:
        most = f"{MOST_ROWS} rows and {MOST_TEXT} bytes"
        raise ValueError(f"it holds more than is read: {most}")
    return pyarrow.parquet.read_table(path).to_pylist()


READERS: dict[str, Callable[[Path], list[Row]]] = {
    ".jsonl": _jsonl,
    ".jsonl.gz": _jsonl,
    ".json": _json,
    ".csv": _table,
    ".tsv": partial(_table, delimiter="\t"),
    ".parquet": _parquet,
}
