"""Read a table of a run folder: whole, with its columns, and with content that makes sense.

A folder may come from another person, and every checksum in it may fit what was forged. So each
table is compared with the schema in `table_columns` and with run.json where it is read, and all
commands may rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anchorscope.errors import UserError, in_a_line
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.listing import require_whole
from anchorscope.run_folder.table_columns import Columns

# What pandas and pyarrow raise for bytes that are no table: ParserError, ArrowInvalid and
# UnicodeDecodeError are ValueErrors.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError)
_SAMPLE_KINDS: dict[str, pa.DataType] = {
    **dict.fromkeys(table_columns.SAMPLES_TEXT, pa.string()),
    **dict.fromkeys(table_columns.SAMPLES_NUMBERS, pa.float64()),
    **dict.fromkeys(table_columns.SAMPLES_TEXTS, pa.list_(pa.string())),
    **dict.fromkeys(table_columns.SAMPLES_POSITIONS, pa.list_(pa.uint32())),
}


class Facts(NamedTuple):
    """The facts of run.json that every table must agree with."""

    datasets: Sequence[str]
    blocks: int | None  # of the model, where it is known


def read_csv(folder: Path, name: str, columns: Columns, facts: Facts) -> pd.DataFrame:
    """The table, names kept as text: a dataset called 'NA' is a name, not a missing number."""

    def read(file: Path) -> pd.DataFrame:
        numbers = [n for n in pd.read_csv(file, nrows=0).columns if n not in table_columns.TEXT]
        return pd.read_csv(
            file,
            dtype=cast(Any, dict.fromkeys(table_columns.TEXT, str)),
            keep_default_na=False,
            na_values=cast(Any, {str(name): ["", "nan", "NaN"] for name in numbers}),
        )

    table = _read(folder, name, columns, read)
    _check(table, folder / name, facts)
    return table


def read_parquet(folder: Path, name: str, columns: Columns, facts: Facts) -> pd.DataFrame:
    """The table of a parquet file."""
    table = _read(folder, name, columns, pd.read_parquet)
    _check(cast(pd.DataFrame, table[list(columns)]), folder / name, facts)
    return table


def read_samples(folder: Path, facts: Facts) -> pd.DataFrame:
    """samples.parquet: one row for each question."""
    name, columns = "samples.parquet", table_columns.SAMPLES
    table, file = _read(folder, name, columns, pd.read_parquet), folder / name
    require_once(table, file, ("id",))
    stored = pq.read_table(file)
    for column in [column for column in _SAMPLE_KINDS if column in stored.column_names]:
        kind = _SAMPLE_KINDS[column]
        try:
            cells = stored[column].cast(kind)  # a position below 0 is no uint32
        except pa.ArrowException as error:
            reason = f"its column {column} is no {kind} ({in_a_line(error, 60)})"
            raise senseless(file, reason) from error
        listed = pa.types.is_list(kind)
        empty = cells.null_count + (cast(Any, pc).list_flatten(cells).null_count if listed else 0)
        if empty and (listed or column in table_columns.SAMPLES_FILLED):
            raise senseless(file, f"its column {column} has empty cells")
    if table["span_starts"].map(len).tolist() != table["span_stops"].map(len).tolist():
        raise senseless(file, "a question has more starts of spans than stops, or fewer")
    require_among(table, file, "verdict", table_columns.VERDICTS)
    require_among(table, file, "dataset", facts.datasets)
    return table


def _read(
    folder: Path, name: str, columns: Columns, read: Callable[[Path], pd.DataFrame]
) -> pd.DataFrame:
    """The table of a file that is there and as it was written, with these columns at least."""
    file = folder / name
    if not file.is_file():
        raise UserError(f"The run lacks '{file}'. Run its command again to have it written.")
    require_whole(folder, name)
    try:
        table = read(file)
    except _UNREADABLE as error:
        raise UserError(
            f"'{file}' cannot be read ({in_a_line(error)}). Run its command again to have it made."
        ) from error
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise UserError(
            f"'{file}' lacks the column(s) {', '.join(missing)}. "
            "It was written by another version: run the command again into a new folder."
        )
    return table


def _check(table: pd.DataFrame, file: Path, facts: Facts) -> None:
    """Raise a UserError where a table does not fit its schema and run.json."""
    for column in table.columns:
        text, cells = column in table_columns.TEXT, table[column]
        kind = pd.api.types.infer_dtype(cells, skipna=True)
        numbers = pd.api.types.is_numeric_dtype(cells) or kind in ("boolean", "empty")
        if not (kind in ("string", "empty") if text else numbers):
            raise senseless(file, f"its column {column} is not {'text' if text else 'numbers'}")
    if "dataset" in table and "claim" not in table:
        require_among(table, file, "dataset", facts.datasets)
    key = table_columns.KEYS.get(file.stem)
    if key is None:
        return
    _require_layers(set(table["layer"].tolist()), file, facts)
    for band in table["layers"].tolist() if "layers" in table else ():
        words = band.split()  # '7 8 9'
        if not words or not all(word.isdecimal() and len(word) < 10 for word in words):
            raise senseless(file, f"its layers '{in_a_line(band, 60)}' are no numbers")
        _require_layers([int(word) for word in words], file, facts)
    require_once(table, file, key)
    for column, accepted in table_columns.WORDS.items():
        if column in table:
            require_among(table, file, column, accepted)


def _require_layers(layers: Collection[float], file: Path, facts: Facts) -> None:
    most = facts.blocks or float("inf")
    odd = [layer for layer in layers if not (1 <= layer <= most and layer % 1 == 0)]
    if odd:
        raise senseless(file, f"it has a layer {odd[0]}")


def require_once(table: pd.DataFrame, file: Path, key: Sequence[str]) -> None:
    """Raise a UserError where a table is empty, or two of its rows have the same key."""
    if table.empty:
        raise senseless(file, "it has no rows")
    twice = table.duplicated(list(key))
    if twice.any():
        row = table.loc[twice, list(key)].iloc[0].to_dict()
        shown = in_a_line(", ".join(f"{name} {value}" for name, value in row.items()), 120)
        raise senseless(file, f"it has two rows with {shown}")


def require_among(
    table: pd.DataFrame, file: Path, column: str, accepted: Collection[object]
) -> None:
    """Raise a UserError where a column holds anything but the accepted values."""
    found = table.loc[~table[column].isin(list(accepted)), column]
    if len(found):
        some = [str(value) for value in list(accepted)[:6]]
        more = ", ..." if len(accepted) > len(some) else ""
        value = in_a_line(found.iloc[0], 60)
        raise senseless(
            file, f"its {column} '{value}' is none of those of the run ({', '.join(some)}{more})"
        )


def senseless(file: Path, why: str) -> UserError:
    """The error for a table whose content makes no sense."""
    return UserError(
        f"'{file}' makes no sense: {why}. Get the folder again, or run its command into a new one."
    )
