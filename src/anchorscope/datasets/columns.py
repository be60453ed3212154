"""Turn rows into questions: required and optional columns, and the user's names for them.

Required: `question`, and `answers` (a list, a JSON list as text, or "a | b") or `answer` (one
text, or a list). Optional: `id`, `subject` or `subjects`, `relation` or `property`, `popularity`,
`entity`, `split`, `ambiguous`. Nothing in a row is evaluated as code.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anchorscope.datasets.source import Draft, Row
from anchorscope.datasets.text import digest, normalised, one_line
from anchorscope.errors import UserError, short
from anchorscope.records import Question

NAMED = (
    "question", "answers", "answer", "id", "subject", "relation", "popularity", "entity", "split",
    "ambiguous",
)  # fmt: skip
OPTIONAL = ", ".join(NAMED[3:])
HOW = f"Write --columns question=COLUMN,answers=COLUMN, and where you like {OPTIONAL}."
SPLITS = {"validation": "dev", "valid": "dev", "val": "dev"}  # one name for the same split
MOST_NAMED = 20  # bad rows in an error
_SURROGATE = re.compile("[\ud800-\udfff]")  # a lone surrogate


class Columns(NamedTuple):
    """The columns of a dataset to read, by our names for them."""

    theirs: Mapping[str, str]

    def normal(self, row: Row) -> Row:
        """Rename the row's columns to ours."""
        return {ours: part_of(row, path) for ours, path in self.theirs.items()}

    def check(self, present: Mapping[str, object], where: str) -> None:
        """Raise a UserError where a named column is missing."""
        _check_missing([c for c in self.needed if c not in present], present, where, HOW)

    @property
    def needed(self) -> tuple[str, ...]:
        """The dataset's own columns that are read, each once."""
        return tuple(dict.fromkeys(path.split(".")[0] for path in self.theirs.values()))


def read_columns(text: str | None) -> Columns | None:
    """Parse the option --columns, `question=...,answers=...`; None without it."""
    if text is None:
        return None
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    named = {ours.strip(): theirs.strip() for ours, _, theirs in pairs}
    wrong = [ours for ours, theirs in named.items() if ours not in NAMED or not theirs]
    if wrong or len(named) < len(pairs):
        raise UserError(f"--columns is '{text}': {wrong or 'a name is there twice'}. {HOW}")
    if "question" not in named or not {"answers", "answer"} & named.keys():
        raise UserError(f"--columns is '{text}', without question or answers. {HOW}")
    return Columns(named)


def part_of(row: Row, path: str) -> object:
    """Get the value of a column or of a part of it, as `answer.aliases`; None if missing."""
    name, *parts = path.split(".")
    value = row.get(name)
    for part in parts:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def check_columns(rows: Sequence[Row], where: str) -> None:
    """Raise a UserError where no row at all has a needed column."""
    present = dict.fromkeys(str(column) for row in rows for column in row)
    missing = [] if "question" in present else ["question"]
    missing += [] if {"answers", "answer"} & present.keys() else ["answers"]
    _check_missing(missing, present, where, f"Needed: question, answers; optional: {OPTIONAL}.")


def _check_missing(
    missing: Sequence[str], present: Mapping[str, object], where: str, advice: str
) -> None:
    if missing:
        raise UserError(
            f"{where} has no column {' and no column '.join(missing)}. Columns there: "
            f"{', '.join(present) or 'none'}. {advice}"
        )


def drafts(
    rows: list[Row] | list[Row | str],
    dataset: str,
    split: str,
    where: str,
    *,
    skip_bad_rows: bool = False,
) -> list[Draft | None]:
    """Turn each row into a draft; None for a bad row that is skipped. An error names all bad rows.

    A row that is a text could not be read: the text is the reason. Rows are counted from 1, without
    the header. `split` is the default for rows that name none. `rows` is empty afterwards: a row's
    memory is free once its draft is made.
    """
    made: list[Draft | None] = []
    bad: list[str] = []
    first: dict[tuple[str, str], int] = {}  # the row of each split and id
    count, named = len(rows), 0
    rows.reverse()
    for number in range(1, count + 1):
        row = rows.pop()
        named += not isinstance(row, str) and bool(row.get("subject") or row.get("subjects"))
        try:
            if isinstance(row, str):
                raise ValueError(f" {row}.")
            # A colon would break the question's id in the wrong place.
            own = _text(row.get("split"), "split").lower().replace(":", "-") or split
            key = SPLITS.get(own, own), _text(row.get("id"), "id")
            if key[1] and first.setdefault(key, number) != number:
                raise ValueError(
                    f" has the id '{key[1]}' of row {first[key]}. Give each row its own, or leave "
                    "the column out."
                )
            made.append(_draft(row, dataset, *key))
        except ValueError as error:
            bad.append(f"Row {number} of {where}{error}")
            made.append(None)
    skip = "--skip-bad-rows (in Python skip_bad_rows=True) leaves"
    if len(bad) == 1 and not skip_bad_rows:
        raise UserError(f"{bad[0]} Or {skip} it out.")
    if bad and not skip_bad_rows:
        lines = [f"{len(bad)} of {count} rows of {where} cannot be used:", *bad[:MOST_NAMED]]
        lines += [f"and {len(bad) - MOST_NAMED} more"] if len(bad) > MOST_NAMED else []
        raise UserError("\n  ".join(lines) + f"\n{skip} them out.")
    good = [draft for draft in made if draft is not None]
    if named and good and not any(draft.question.subjects for draft in good):
        raise UserError(
            f"None of the {named} subjects of {where} stands in its question. A subject is "
            "the part of the question that names what is asked about, as written there."
        )
    return made


def _draft(row: Row, dataset: str, split: str, id: str) -> Draft:
    """Make a question from a row; a ValueError says what is wrong with it."""
    text = _text(row.get("question"), "question")
    if not text:
        raise ValueError(" has an empty question. Fill it in or remove the row.")
    given = row.get("answers")
    if given is None:  # a single answer may have | or [ in it, so it is not taken apart
        given = [row.get("answer")] if isinstance(row.get("answer"), str) else row.get("answer")
    answers = _list(given, "answers")
    if not answers:
        raise ValueError(" has no answers. Fill them in or remove the row.")
    named = _list(_first(row, "subjects", "subject"), "subject")
    hits = [re.search(re.escape(name), text) or re.search(re.escape(name), text, re.IGNORECASE)
            for name in named]  # fmt: skip
    question = Question(
        id=f"{dataset}:{split}:{id or digest(text)}",
        dataset=dataset,
        text=text,
        answers=answers,
        # As the text spells them; one that it does not have is left out.
        subjects=tuple(dict.fromkeys(hit.group() for hit in hits if hit)),
        relation=_text(_first(row, "relation", "property"), "relation") or None,
        popularity=_popularity(row.get("popularity")),
        entity=normalised(_text(row.get("entity"), "entity") or (named[0] if named else text)),
    )
    ambiguous = row.get("ambiguous")
    flag = str(ambiguous) if isinstance(ambiguous, bool) else _text(ambiguous, "ambiguous")
    if flag.lower() not in ("", "0", "1", "true", "false", "0.0", "1.0"):
        raise _wrong("ambiguous", "true or false", ambiguous)
    return Draft(question, flag.lower() in ("1", "true", "1.0"))


def _first(row: Row, one: str, other: str) -> object:
    value = row.get(one)
    return row.get(other) if value is None else value


def _text(value: object, column: str) -> str:
    """Convert a value to one line of text; a missing value is empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _wrong(column, "text", value)
    text = one_line(str(value))
    if _SURROGATE.search(text):
        raise ValueError(f": {column} holds half a character (a lone surrogate).")
    return text


def _list(value: object, column: str) -> tuple[str, ...]:
    """Split a list, a JSON list, or "a | b" into its distinct texts."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f": {column} begins with [ but is no JSON list: {short(value)}. "
                'Write ["a", "b"] or a | b.'
            ) from error
    elif isinstance(value, str):
        value = value.split("|")
    items = value if isinstance(value, list | tuple) else [value]
    return tuple(dict.fromkeys(text for item in items if (text := _text(item, column))))


def _popularity(value: object) -> float | None:
    text = _text(value, "popularity")
    if not text or text.lower() == "nan":
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _wrong("popularity", "a number", value)
    return number


def _wrong(column: str, accepted: str, value: object) -> ValueError:
    return ValueError(f": {column} must be {accepted}, not {short(value)}.")
