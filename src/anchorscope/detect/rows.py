"""Read, check and write files of questions, answers and scores."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pandas as pd
from pyarrow import ArrowException

from anchorscope.datasets.rows import extension, read_rows
from anchorscope.detect.prompts import Exchange
from anchorscope.errors import UserError, short, unknown
from anchorscope.run_folder.disk import check_writable, write_atomic

Fields = dict[str, Any]
FORMS = ("question", "messages", "prompt")  # fields that may hold the prompt
ENDS = (".jsonl", ".csv", ".parquet")
_INPUT = ("question", "answer")  # given by the row, not added with the score
_RIGHT = ("right", "correct", "true", "yes")
_WRONG = ("wrong", "incorrect", "false", "no")


# --- What a row holds ---


def rows_of_file(place: str | Path) -> list[Fields]:
    """The rows of a JSONL, CSV or parquet file; of "-", JSON lines from standard input."""
    if str(place) == "-":
        lines = [line for line in sys.stdin if line.strip()]
        try:
            return [dict(json.loads(line)) for line in lines]
        except (ValueError, TypeError) as error:
            raise UserError(f"Standard input is not JSON lines ({error}).") from error
    if not Path(place).is_file():
        raise UserError(f"There is no file '{place}'. Give JSONL, CSV or parquet, or - for stdin.")
    return [dict(row) for row in read_rows(Path(place))]


def rows_to_score(place: str | Path) -> tuple[list[Fields], list[Exchange]]:
    """The rows of a file and the exchange in each; a `question` may come without an answer."""
    rows = rows_of_file(place)
    if extension(Path(place)) in (".csv", ".tsv"):  # where a missing value is an empty text
        rows = [row | {"answer": row.get("answer") or None} for row in rows]
    name = "standard input" if str(place) == "-" else Path(place).name
    return rows, [
        exchange_of(row, f"Row {number} of {name}", answered=row.get("question") in (None, ""))
        for number, row in enumerate(rows, 1)
    ]


def exchange_of(row: Mapping[str, Any], where: str, *, answered: bool = True) -> Exchange:
    """Parse the exchange in a row; a UserError names the row (`where`) if it has none.

    Unless it has to be `answered`, the answer may be missing: the model then writes it.
    """
    given = {name: row[name] for name in FORMS if row.get(name) not in (None, "")}
    try:
        if isinstance(turns := given.get("messages"), str):
            turns = json.loads(turns)
        if turns is not None:
            given["messages"] = tuple(dict(turn) for turn in turns)
        exchange = Exchange(answer=row.get("answer"), **given)
    except (ValueError, TypeError, UserError) as error:
        raise UserError(f"{where} cannot be read. {error}") from error
    if answered and exchange.answer is None:
        raise UserError(f"{where} has no `answer`, which has to be a text.")
    return exchange


def is_right(label: Any, where: str) -> bool:
    """Whether a label means right: a word, true or false, or a number of at least 0.5."""
    word = str(label).strip().lower()
    if word in _RIGHT or word in _WRONG:
        return word in _RIGHT
    try:
        number = float(word)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise UserError(
            f"{where} has the `label` {short(str(label))}. Accepted: right or wrong, true or "
            "false, or a number from 0 (wrong) to 1 (right)."
        )
    return number >= 0.5


# --- Rows with their scores ---


def check_names(rows: Sequence[Fields], kind: type) -> None:
    """Raise a UserError if a row has a field that a score of this class would overwrite."""
    new = {field.name for field in fields(kind)} - set(_INPUT)
    if taken := sorted({name for row in rows for name in row} & new):
        raise UserError(
            f"The rows have fields of their own called {', '.join(taken)}. Rename them."
        )


def with_score(row: Fields, scored: Any) -> Fields:
    """Add the fields of a score (a dataclass) to a row; the row's own values stay."""
    own = {name: value for name, value in row.items() if name != "answer" or value is not None}
    new = asdict(scored)
    return plain(own | {name: new[name] for name in new if name not in ("question", *own)})


def plain(value: Any) -> Any:
    """Convert a value for JSON; NaN and infinity become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def json_line(row: Fields) -> str:
    """The row as one line of JSON."""
    return json.dumps(plain(row), ensure_ascii=False, allow_nan=False, default=str)


def check_out(out: Path, rows: Sequence[Fields]) -> None:
    """Raise a UserError if the output file cannot be written; called before scoring."""
    if extension(out) not in ENDS:
        raise unknown("kind of file for --out", out.name, ENDS)
    check_writable(out.parent)
    if out.is_dir() or (out.exists() and not os.access(out, os.W_OK)):
        raise UserError(f"--out '{out}' cannot be written. Give a file in a folder of yours.")
    if extension(out) == ".parquet":
        _parquet(rows, out)


def write_rows(out: Path, rows: Sequence[Fields]) -> None:
    """Write all rows in the format of the file's extension, atomically."""
    if extension(out) == ".jsonl":
        write_atomic(out, "".join(json_line(row) + "\n" for row in rows))
    elif extension(out) == ".csv":
        cells = [{name: _cell(value) for name, value in row.items()} for row in rows]
        write_atomic(out, pd.DataFrame(cells, dtype=object).to_csv(index=False))
    else:
        write_atomic(out, _parquet(rows, out))


def _cell(value: Any) -> Any:
    """The value as a cell of CSV: lists and the like as JSON."""
    value = plain(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _parquet(rows: Sequence[Fields], out: Path) -> bytes:
    try:
        return pd.DataFrame(list(rows), dtype=object).to_parquet(index=False)
    except ArrowException as error:
        raise UserError(
            f"The rows cannot be written as {out.name}, since the values of a field are of several "
            f"kinds ({' '.join(map(str, error.args)).splitlines()[0]}). Write .jsonl instead."
        ) from error
