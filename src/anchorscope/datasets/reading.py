"""The rows of a file, by its extension; a file that cannot be read is said to be so."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from anchorscope.datasets.source import Row
from anchorscope.errors import UserError, unknown

NOT_READABLE = (OSError, EOFError, ValueError, RecursionError, csv.Error, zlib.error)


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
        return [_object(line, number) for number, line in enumerate(file, 1) if line.strip()]


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
        found = json.load(file)
    rows = found.get("Data") if isinstance(found, Mapping) else found  # TriviaQA's outer object
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it holds no list of objects")
    return rows


def _csv(path: Path) -> list[Row]:
    return _table(path, ",")


def _tsv(path: Path) -> list[Row]:
    return _table(path, "\t")


def _table(path: Path, delimiter: str) -> list[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows: list[Row] = []
        for number, row in enumerate(csv.DictReader(file, delimiter=delimiter, strict=True), 1):
            if None in row:
                raise ValueError(f"row {number} has more fields than the header")
            rows.append(row)
    return rows


def _parquet(path: Path) -> list[Row]:
    import pyarrow.parquet  # slow to import, and needed for this one kind of file only

    return pyarrow.parquet.read_table(path).to_pylist()


READERS: dict[str, Callable[[Path], list[Row]]] = {
    ".jsonl": _jsonl,
    ".jsonl.gz": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
}
