"""Read a table of a run folder: whole, with its columns, and with content that makes sense.

A folder may come from another person, and every checksum in it may fit what was forged. So each
table is held against the schema in `table_columns` and against run.json where it is read, and all
commands may rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from anchorscope.errors import UserError, in_a_line
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.listing import require_whole
from anchorscope.run_folder.table_columns import Columns

# What pandas and pyarrow say of bytes that are no table: ParserError, ArrowInvalid and
# UnicodeDecodeError are ValueErrors.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError)


class Known(NamedTuple):
    """What run.json says that every table must agree with."""

    datasets: Sequence[str]
    blocks: int | None  # of the model, where it is known


def read_csv(folder: Path, name: str, columns: Columns, known: Known) -> pd.DataFrame:
    """The table, names kept as text: a dataset called 'NA' is a name, not a missing number."""

    def read(file: Path) -> pd.DataFrame:
        numbers = [n for n in pd.read_csv(file, nrows=0).columns if n not in table_columns.TEXT]
        return pd.read_csv(
            file,
            dtype=cast(Any, dict.fromkeys(table_columns.TEXT, str)),
            keep_default_na=False,
            na_values=cast(Any, {str(name): ["", "nan", "NaN"] for name in numbers}),
        )

    return _checked(_read(folder, name, columns, read), folder / name, known)


def read_parquet(folder: Path, name: str, columns: Columns, known: Known) -> pd.DataFrame:
    """The table of a parquet file."""
    table = _read(folder, name, columns, pd.read_parquet)
    _checked(cast(pd.DataFrame, table[list(columns)]), folder / name, known)
    return table


def read_samples(folder: Path, known: Known) -> pd.DataFrame:
    """samples.parquet: one row for each question."""
    name, columns = "samples.parquet", table_columns.SAMPLES
    table, file = _read(folder, name, columns, pd.read_parquet), folder / name
    require_once(table, file, ("id",))
    for column, cells in _columns_of(file):
        kind, fits = cells.type, _SAMPLE_KINDS.get(column)
        empty = pa.types.is_null(kind) and column not in _LISTS
        if fits is not None and not (empty or fits(kind)):
            raise senseless(file, f"its column {column} is of the kind {kind}")
        if column in _LISTS:
            inside: Any = cast(Any, cells.combine_chunks()).flatten()
            if cells.null_count + inside.null_count:
                raise senseless(file, f"its column {column} has empty places")
            if column in table_columns.SAMPLES_INTEGERS and len(inside):
                low, high = inside.to_numpy().min(), inside.to_numpy().max()
                if low < 0 or high >= 2**32:
                    raise senseless(file, f"its {column} go from {low} to {high}")
    if table["span_starts"].map(len).tolist() != table["span_stops"].map(len).tolist():
        raise senseless(file, "a question has more starts of spans than stops, or fewer")
    for column in table_columns.SAMPLES_FILLED:
        if cast(pd.Series, table[column]).isna().sum():
            raise senseless(file, f"its column {column} has empty cells")
    require_among(table, file, "verdict", table_columns.VERDICTS)
    require_among(table, file, "dataset", known.datasets)
    return table


def require_once(table: pd.DataFrame, file: Path, key: Sequence[str]) -> None:
    """Raise a UserError where a table is empty, or two of its rows are about the same."""
    if table.empty:
        raise senseless(file, "it has no rows")
    twice = table.duplicated(list(key))
    if twice.any():
        row = table.loc[twice, list(key)].iloc[0].to_dict()
        raise senseless(file, f"it has two rows with {_shown(row)}")


def require_among(
    table: pd.DataFrame, file: Path, column: str, accepted: Collection[object]
) -> None:
    """Raise a UserError where a column holds anything but the accepted values."""
    found = table.loc[~table[column].isin(list(accepted)), column]
    if len(found):
        some = [str(value) for value in list(accepted)[:6]]
        more = ", ..." if len(accepted) > len(some) else ""
        given = in_a_line(found.iloc[0], 60)
        raise senseless(
            file, f"its {column} '{given}' is none of those of the run ({', '.join(some)}{more})"
        )


def senseless(file: Path, why: str) -> UserError:
    """The error for a table whose content makes no sense."""
    return UserError(
        f"'{file}' makes no sense: {why}. Get the folder again, or run its command into a new one."
    )


def _checked(table: pd.DataFrame, file: Path, known: Known) -> pd.DataFrame:
    """The table, found to fit its schema and run.json."""
    for column in table.columns:
        text, cells = column in table_columns.TEXT, table[column]
        kind = pd.api.types.infer_dtype(cells, skipna=True)
        numbers = pd.api.types.is_numeric_dtype(cells) or kind in ("boolean", "empty")
        if not (kind in ("string", "empty") if text else numbers):
            raise senseless(file, f"its column {column} is not {'text' if text else 'numbers'}")
    key = table_columns.KEYS.get(file.stem)
    if "dataset" in table and "claim" not in table:
        require_among(table, file, "dataset", known.datasets)
    if key is not None:
        _require_layers(set(table["layer"].tolist()), file, known)
        for band in table["layers"].tolist() if "layers" in table else ():
            _require_layers(_numbers(band, file), file, known)
        require_once(table, file, key)
        for column, accepted in table_columns.WORDS.items():
            if column in table:
                require_among(table, file, column, accepted)
    return table


def _require_layers(layers: Collection[float], file: Path, known: Known) -> None:
    most = known.blocks or float("inf")
    odd = [layer for layer in layers if not (1 <= layer <= most and layer % 1 == 0)]
    if odd:
        raise senseless(file, f"it has a layer {odd[0]}")


def _numbers(band: str, file: Path) -> list[int]:
    """The layers of a band, as '7 8 9' names them."""
    words = band.split()
    if not words or not all(word.isdecimal() and len(word) < 10 for word in words):
        raise senseless(file, f"its layers '{in_a_line(band, 60)}' are no numbers")
    return [int(word) for word in words]


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
        reason = in_a_line(error)
        raise UserError(
            f"'{file}' cannot be read ({reason}). Run its command again to have it made."
        ) from error
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise UserError(
            f"'{file}' lacks the column(s) {', '.join(missing)}. "
            "It was written by another version: run the command again into a new folder."
        )
    return table


def _shown(row: dict[Any, Any]) -> str:
    return in_a_line(", ".join(f"{name} {value}" for name, value in row.items()), 120)


def _columns_of(file: Path) -> Iterator[tuple[str, pa.ChunkedArray]]:
    table = pq.read_table(file)
    return zip(table.column_names, table.columns, strict=True)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _list_of(fits: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    def is_list(kind: pa.DataType) -> bool:
        listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        return listed and (pa.types.is_null(kind.value_type) or fits(kind.value_type))

    return is_list


_LISTS = (*table_columns.SAMPLES_TEXTS, *table_columns.SAMPLES_INTEGERS)
_SAMPLE_KINDS: dict[str, Callable[[pa.DataType], bool]] = {
    name: fits
    for names, fits in (
        (table_columns.SAMPLES_TEXT, _is_text),
        (table_columns.SAMPLES_NUMBERS, _is_number),
        (table_columns.SAMPLES_TEXTS, _list_of(_is_text)),
        (table_columns.SAMPLES_INTEGERS, _list_of(pa.types.is_integer)),
    )
    for name in names
}
