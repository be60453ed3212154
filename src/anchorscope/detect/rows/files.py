"""Read questions from a file and write its rows with scores: JSON lines, CSV and parquet."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from anchorscope.datasets.from_file import extension
from anchorscope.detect.deployed.located import Scored
from anchorscope.detect.rows.exchanges import exchange_of, rows_of_file
from anchorscope.errors import UserError, unknown

Fields = dict[str, Any]
_INPUT = ("question", "answer")  # the row's own, not new fields
_PLAIN_TEXT = (".csv", ".tsv")  # where a missing value is an empty one


def read_questions(path: str | Path) -> list[Fields]:
    """The rows of a file to score: what was asked, and an `answer` that is a text or missing.

    Rows with `messages` or `prompt` need an answer; that to a `question` the model can write.
    """
    empty_is_none = extension(Path(path)) in _PLAIN_TEXT
    name = "standard input" if str(path) == "-" else Path(path).name
    return [
        _checked(row, f"Row {number} of {name}", empty_is_none)
        for number, row in enumerate(rows_of_file(path), 1)
    ]


def _checked(row: Fields, where: str, empty_is_none: bool) -> Fields:
    if any(row.get(name) not in (None, "") for name in ("messages", "prompt")):
        exchange_of(row, where)
        return row
    question, answer = row.get("question"), row.get("answer")
    if not isinstance(question, str) or not question.strip():
        found = "no `question`" if question in (None, "") else f"the `question` {question!r}"
        raise UserError(f"{where} has {found}. A question is a text that is not empty.")
    if answer is None or (empty_is_none and answer == ""):
        return row | {"answer": None} if "answer" in row else row
    if not isinstance(answer, str):
        raise UserError(f'{where} has the `answer` {answer!r}. An answer is a text: put it in "".')
    return row


def new_fields(prefix: str = "", *, of: type = Scored) -> tuple[str, ...]:
    """The names of the fields that scoring adds to a row, those of the class `of`."""
    return tuple(prefix + field.name for field in fields(of) if field.name not in _INPUT)


def check_names(rows: Sequence[Mapping[str, Any]], prefix: str, *, of: type = Scored) -> None:
    """Raise a UserError where a row has a field of its own that scoring would write over."""
    taken = sorted({name for row in rows for name in row} & set(new_fields(prefix, of=of)))
    if taken:
        raise UserError(
            f"The rows have fields of their own called {', '.join(taken)}. Rename them, or give "
            "--prefix WORD, which is put in front of the new fields' names."
        )


def scored_fields(scored: Any, prefix: str = "") -> Fields:
    """What a score (a dataclass) says, as fields that JSON knows; what is not known is None."""
    values = plain(asdict(scored))
    return {
        name if name in _INPUT else prefix + name: value
        for name, value in values.items()
        if name != "question"
    }


def joined(row: Mapping[str, Any], scored: Mapping[str, Any]) -> Fields:
    """The row with its score; an answer that was given stays as it was given."""
    own = {k: v for k, v in row.items() if k != "answer" or v is not None}
    return {**own, **{name: value for name, value in scored.items() if name not in own}}


def plain(value: Any) -> Any:
    """The value for JSON, which knows no NaN: what is not known is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def json_line(row: Mapping[str, Any]) -> str:
    """The row as one line of JSON."""
    return json.dumps(plain(row), ensure_ascii=False, allow_nan=False, default=str)


def check_out(out: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise a UserError where the file could not be written; makes its folder where it is missing.

    Before anything is scored: what cannot be written would be lost.
    """
    if extension(out) not in WRITERS:
        raise unknown("kind of file for --out", out.name, WRITERS)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The folder '{out.parent}' of --out cannot be made: {error.strerror or error}. Give "
            "a place that can be written to."
        ) from error
    if not os.access(out.parent, os.W_OK) or out.is_dir():
        raise UserError(f"--out '{out}' cannot be written. Give a file in a folder of yours.")
    if extension(out) == ".parquet":
        _table(rows, out)


def write_rows(out: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write all rows in the format that the file's name says, in one step."""
    unfinished = out.with_name(f".{out.name}.unfinished")
    WRITERS[extension(out)](unfinished, rows)
    os.replace(unfinished, out)


def _write_jsonl(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.write_text("".join(json_line(row) + "\n" for row in rows), encoding="utf-8")


def _write_csv(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with file.open("w", encoding="utf-8", newline="") as opened:
        table = csv.DictWriter(opened, names)
        table.writeheader()
        table.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    """The value as a cell: lists and the like as JSON, what is not known as nothing."""
    value = plain(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _write_parquet(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(_table(rows, file), file)


def _table(rows: Sequence[Mapping[str, Any]], out: Path) -> Any:
    """The rows as an Arrow table, a column for every name that some row has."""
    import pyarrow as pa

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UserError(
                f"The field `{name}` cannot be a column of {out.name}: its values are of several "
                f"kinds ({str(error).splitlines()[0]}). Write .jsonl instead."
            ) from error
    return pa.table(columns)


WRITERS: dict[str, Callable[[Path, Sequence[Mapping[str, Any]]], None]] = {
    ".jsonl": _write_jsonl,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
