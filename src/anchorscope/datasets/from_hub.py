"""Rows from the hub, through the PyPI package `datasets`."""

from __future__ import annotations

from anchorscope.datasets.from_file import drafts
from anchorscope.datasets.source import Draft, HubPlace, Row, Source
from anchorscope.errors import UserError

OWN = (
    "a .jsonl, .jsonl.gz, .json, .csv, .tsv or .parquet file with the columns question and answers"
)


def from_hub(source: Source, place: HubPlace) -> list[Draft]:
    """The dataset's questions as the hub has them."""
    try:
        rows = hub_rows(place)
    except ImportError as error:
        raise UserError(
            f"{source.title} comes from the hub through the package 'datasets', which is not "
            f"installed. Install it, or give a file: {accepted(source)}."
        ) from error
    except Exception as error:  # the library has no one class for "could not be reached"
        raise UserError(
            f"{source.title} ({place.path}) could not be reached on the hub "
            f"({type(error).__name__}). Try again with a connection, or give a file: "
            f"{accepted(source)}."
        ) from error
    return drafts([source.normal(row) for row in rows], source.name, place.split, place.path)


def hub_rows(place: HubPlace) -> list[Row]:
    """The rows of one split, only the columns that are needed; no code of the hub is run."""
    from datasets import load_dataset  # PyPI's, not ours; slow to import

    dataset = load_dataset(place.path, place.config, split=place.split)
    return [dict(row) for row in dataset.select_columns(list(place.columns))]


def accepted(source: Source) -> str:
    """The files that serve instead, in words."""
    return f"{source.formats}, or {OWN}"
