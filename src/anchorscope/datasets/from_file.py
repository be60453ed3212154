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
MOST_NAMED = 20  # bad rows in an error


def from_file(
    path: Path,
    sources: Iterable[Source],
    columns: Columns | None = None,
    *,
    skip_bad_rows: bool = False,
) -> tuple[Source, list[Draft | None]]:
    """The file's dataset, one of `sources` or the file's own, and its questions as drafts.

    None instead of a draft where a bad row is skipped.
    """
    rows = _read(path)
    present = next((row for row in rows if not isinstance(row, str)), {})
    if columns is not None:
        columns.check(present, path.name)
        rows = [row if isinstance(row, str) else columns.normal(row) for row in rows]
        present = columns.normal(present)
    source = recognise(path, present, sources)
    normal = [row if isinstance(row, str) else source.normal(row) for row in rows]
    if present:
        check_columns([row for row in normal if not isinstance(row, str)], path.name)
    made = drafts(normal, source.name, _split(path), path.name, skip_bad_rows=skip_bad_rows)
    return source, made


def drafts(
    rows: Sequence[Row | str],
    dataset: str,
    split: str,
    where: str,
    *,
    skip_bad_rows: bool = False,
) -> list[Draft | None]:
    """One draft a row, None for a bad one that is skipped; an error names all bad rows.

    A row that is a text is no row: the text says why. Rows are counted from 1, the header not
    counted.
    """
    made: list[Draft | None] = []
    bad: list[str] = []
    first: dict[Key, int] = {}
    for number, row in enumerate(rows, 1):
        name = f"Row {number} of {where}"
        try:
            if isinstance(row, str):
                raise UserError(f"{name} {row}.")
            key = key_of(row, split, name)
            if key.id and first.setdefault(key, number) != number:
                raise UserError(
                    f"{name} has the id '{key.id}' of row {first[key]}. Give each row its own, or "
                    "leave the column out."
                )
            made.append(draft(row, key, dataset=dataset, where=name))
        except UserError as error:
            bad.append(str(error))
            made.append(None)
    if bad and not skip_bad_rows:
        raise _bad_rows(bad, len(rows), where)
    good = [one for one in made if one is not None]
    with_subject = sum(
        not isinstance(row, str) and bool(row.get("subject") or row.get("subjects")) for row in rows
    )
    if with_subject and good and not any(one.question.subjects for one in good):
        raise UserError(
            f"None of the {with_subject} subjects of {where} stands in its question. "
            "A subject is the part of the question that names what is asked about, as written "
            "there."
        )
    return made


def _bad_rows(bad: Sequence[str], rows: int, where: str) -> UserError:
    skip = "--skip-bad-rows (in Python skip_bad_rows=True) leaves"
    if len(bad) == 1:
        return UserError(f"{bad[0]} Or {skip} it out.")
    more = f"\n  and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
    lines = "".join(f"\n  {one}" for one in bad[:MOST_NAMED])
    return UserError(
        f"{len(bad)} of {rows} rows of {where} cannot be used:{lines}{more}\n{skip} them out."
    )


def recognise(path: Path, row: Row, sources: Iterable[Source]) -> Source:
    """The dataset that a row's columns or the file's name say, else one named after the file."""
    sources, columns = tuple(sources), set(row)
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
    """The rows of the file, column -> value, in the file's order; an error for what is no row."""
    rows = _read(path)
    for number, row in enumerate(rows, 1):
        if isinstance(row, str):
            raise _unreadable(path, f"row {number} {row}")
    return cast("list[Row]", rows)


def _read(path: Path) -> list[Row | str]:
    """The rows of the file; in the place of one that cannot be read, a text that says why."""
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
    with opened(path, "rt", encoding="utf-8-sig") as file:
        return [_object(line) for line in _lines(cast(IO[str], file)) if line.strip()]


def _object(line: str) -> Row | str:
    try:
        row = json.loads(line)
    except ValueError:
        return "is no JSON"
    return row if isinstance(row, dict) else "is no JSON object"


def _lines(file: IO[str]) -> Iterator[str]:
    """The lines of a file, within bounds: a few packed kilobytes may unpack into terabytes."""
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
        most = f"{MOST_ROWS} rows and {MOST_TEXT} bytes"
        raise ValueError(f"it holds more than is read: {most}")
    return pyarrow.parquet.read_table(path).to_pylist()


READERS: dict[str, Callable[[Path], list[Row | str]]] = {
    ".jsonl": _jsonl,
    ".jsonl.gz": _jsonl,
    ".json": _json,
    ".csv": _table,
    ".tsv": partial(_table, delimiter="\t"),
    ".parquet": _parquet,
}
