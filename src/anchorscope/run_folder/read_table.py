"""A table of a run folder read back: whole, as it was written, with the columns it must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pandas as pd

from anchorscope.errors import UserError
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.listing import require_whole
from anchorscope.run_folder.table_columns import Columns

# What pandas and pyarrow say of bytes that are no table: ParserError, ArrowInvalid and
# UnicodeDecodeError are ValueErrors.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError)


def read_csv(folder: Path, name: str, columns: Columns) -> pd.DataFrame:
    """The table, names kept as text: a dataset called 'NA' is a name, not a missing number."""
    file = _found(folder, name)
    try:
        table = pd.read_csv(
            file,
            dtype=cast(Any, dict.fromkeys(table_columns.TEXT, str)),
            keep_default_na=False,
            na_values=cast(Any, {name: ["", "nan", "NaN"] for name in _numbers(file)}),
        )
    except _UNREADABLE as error:
        raise _unreadable(file, error) from error
    return _checked(table, file, columns)


def read_parquet(folder: Path, name: str, columns: Columns) -> pd.DataFrame:
    """The table of a parquet file."""
    file = _found(folder, name)
    try:
        table = pd.read_parquet(file)
    except _UNREADABLE as error:
        raise _unreadable(file, error) from error
    return _checked(table, file, columns)


def _numbers(file: Path) -> list[str]:
    """The columns of the file that do not hold text."""
    header = pd.read_csv(file, nrows=0).columns
    return [str(name) for name in header if name not in table_columns.TEXT]


def _found(folder: Path, name: str) -> Path:
    file = folder / name
    if not file.is_file():
        raise UserError(f"The run lacks '{file}'. Run its command again to have it written.")
    require_whole(folder, name)
    return file


def _unreadable(file: Path, error: Exception) -> UserError:
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return UserError(f"'{file}' cannot be read ({reason}). Run its command again to have it made.")


def _checked(table: pd.DataFrame, file: Path, columns: Columns) -> pd.DataFrame:
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise UserError(
            f"'{file}' lacks the column(s) {', '.join(missing)}. "
            "It was written by another version: run the command again into a new folder."
        )
    return table
