"""Columns named by the user: which of a dataset's columns is the question, which the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from anchorscope.datasets.source import Row
from anchorscope.errors import UserError

OURS = (
    "question", "answers", "answer", "id", "subject", "relation", "popularity", "entity", "split",
    "ambiguous",
)  # fmt: skip
HOW = "Write --columns question=COLUMN,answers=COLUMN, and where you like " + ", ".join(OURS[3:])


class Columns(NamedTuple):
    """Our column -> theirs. A column of theirs that is not named is not read."""

    theirs: Mapping[str, str]

    def normal(self, row: Row) -> Row:
        """The row under our names; a part of a column, as in `answer.aliases`, by its path."""
        return {ours: part_of(row, path) for ours, path in self.theirs.items()}

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns of theirs that are read, each once."""
        return tuple(dict.fromkeys(path.split(".")[0] for path in self.theirs.values()))

    def check(self, present: Mapping[str, object] | list[str], where: str) -> None:
        """Raises where a named column is not there."""
        missing = [column for column in self.needed if column not in present]
        if missing:
            raise UserError(
                f"{where} has no column {' and no column '.join(missing)}. Columns there: "
                f"{', '.join(present)}. {HOW}."
            )


def read_columns(text: str | None) -> Columns | None:
    """The columns that `question=...,answers=...` names; None for None."""
    if text is None:
        return None
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    named = {ours.strip(): theirs.strip() for ours, _, theirs in pairs}
    wrong = [ours for ours, theirs in named.items() if ours not in OURS or not theirs]
    if wrong or len(named) < len(pairs):
        raise UserError(f"--columns is '{text}': {wrong or 'a name is there twice'}. {HOW}.")
    if "question" not in named or not {"answers", "answer"} & named.keys():
        raise UserError(f"--columns is '{text}', without question or answers. {HOW}.")
    return Columns(named)


def part_of(row: Row, path: str) -> object:
    """The value of a column, or of a part of it: `answer.aliases`; None where it is not there."""
    name, *parts = path.split(".")
    value = row.get(name)
    for part in parts:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
