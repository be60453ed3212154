"""Turn rows into questions: the columns that are needed, and those that the user names.

Required: `question`, and `answers` (a list, a JSON list as text, or "a | b") or `answer` (one
text, or a list). Optional: `id`, `subject` or `subjects`, `relation` or `property`, `popularity`,
`entity`, `split`, `ambiguous`. Text is text: nothing in a row is evaluated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from anchorscope.datasets.source import Draft, Row
from anchorscope.datasets.text import digest, normalised, one_line
from anchorscope.errors import UserError
from anchorscope.records import Question

NEEDED = "question, answers"
OPTIONAL = "id, subject, relation, popularity, entity, split, ambiguous"
SPLITS = {"validation": "dev", "valid": "dev", "val": "dev"}  # one name for the same split
NAMED = (
    "question", "answers", "answer", "id", "subject", "relation", "popularity", "entity", "split",
    "ambiguous",
)  # fmt: skip
HOW = "Write --columns question=COLUMN,answers=COLUMN, and where you like " + ", ".join(NAMED[3:])
_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character


class Columns(NamedTuple):
    """The columns of a dataset by our names for them; others are not read."""

    theirs: Mapping[str, str]

    def normal(self, row: Row) -> Row:
        """The row under our names; a part of a column, as in `answer.aliases`, by its path."""
        return {ours: part_of(row, path) for ours, path in self.theirs.items()}

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns of theirs that are read, each once."""
        return tuple(dict.fromkeys(path.split(".")[0] for path in self.theirs.values()))

    def check(self, present: Mapping[str, object], where: str) -> None:
        """Raise a UserError where a named column is missing."""
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
    wrong = [ours for ours, theirs in named.items() if ours not in NAMED or not theirs]
    if wrong or len(named) < len(pairs):
        raise UserError(f"--columns is '{text}': {wrong or 'a name is there twice'}. {HOW}.")
    if "question" not in named or not {"answers", "answer"} & named.keys():
        raise UserError(f"--columns is '{text}', without question or answers. {HOW}.")
    return Columns(named)


def part_of(row: Row, path: str) -> object:
    """The value of a column, or of a part of it: `answer.aliases`; None where it is missing."""
    name, *parts = path.split(".")
    value = row.get(name)
    for part in parts:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def check_columns(rows: Sequence[Row], where: str) -> None:
    """Raise a UserError where no row at all has a needed column."""
    columns = list(dict.fromkeys(map(str, dict.fromkeys(chain.from_iterable(rows)))))
    missing = [] if "question" in columns else ["question"]
    if "answers" not in columns and "answer" not in columns:
        missing.append("answers")
    if missing:
        raise UserError(
            f"{where} has no column {' and no column '.join(missing)}. Columns there: "
            f"{', '.join(columns) or 'none'}. Needed: {NEEDED}; optional: {OPTIONAL}."
        )


class Key(NamedTuple):
    """The identity of a row in its dataset."""

    split: str
    id: str  # empty where the row gives none


def key_of(row: Row, default: str, where: str) -> Key:
    """The row's split, `default` where it names none, and its id."""
    # A colon would break the question's id in the wrong place.
    split = _line(row.get("split"), "split", where).lower().replace(":", "-") or default
    return Key(SPLITS.get(split, split), _line(row.get("id"), "id", where))


def draft(row: Row, key: Key, *, dataset: str, where: str) -> Draft:
    """The question of a row with our columns; `where` names the row in errors."""
    text = _line(row.get("question"), "question", where)
    if not text:
        raise UserError(f"{where} has an empty question. Fill it in or remove the row.")
    answers = _answers(row, where)
    named = _list(_first(row, "subjects", "subject"), "subject", where)
    entity = _text(row.get("entity"), "entity", where) or (named[0] if named else text)
    question = Question(
        id=f"{dataset}:{key.split}:{key.id or digest(text)}",
        dataset=dataset,
        text=text,
        answers=answers,
        subjects=_subjects(named, text),
        relation=_line(_first(row, "relation", "property"), "relation", where) or None,
        popularity=_popularity(row.get("popularity"), where),
        entity=normalised(entity),
    )
    return Draft(question, _flag(row.get("ambiguous"), where))


def _first(row: Row, one: str, other: str) -> object:
    value = row.get(one)
    return row.get(other) if value is None else value


def _line(value: object, column: str, where: str) -> str:
    """The value as text in one line."""
    if type(value) is str and value.isascii():  # as most are: nothing in it can be wrong
        return " ".join(value.split())
    return one_line(_text(value, column, where))


def _text(value: object, column: str, where: str) -> str:
    """The value as text; a missing one is empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{where}: {column} must be text, not {_short(value)}.")
    text = str(value).strip()
    if not text.isascii() and _SURROGATE.search(text):
        raise UserError(f"{where}: {column} holds half a character (a lone surrogate).")
    return text


def _list(value: object, column: str, where: str) -> tuple[str, ...]:
    """The different texts of a list, a JSON list, or "a | b"."""
    if isinstance(value, str):
        in_json = value.lstrip().startswith("[")
        value = _json_list(value, column, where) if in_json else value.split("|")
    if value is None:
        return ()
    items = value if isinstance(value, list | tuple) else [value]
    texts = [_line(item, column, where) for item in items]
    return tuple(dict.fromkeys([text for text in texts if text]))


def _json_list(value: str, column: str, where: str) -> list[object]:
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where}: {column} begins with [ but is no JSON list: {_short(value)}. "
            'Write ["a", "b"] or a | b.'
        ) from error


def _answers(row: Row, where: str) -> tuple[str, ...]:
    value = row.get("answers")
    if value is None:  # a single answer may have | or [ in it, so it is not taken apart
        one = row.get("answer")
        value = [one] if isinstance(one, str) else one
    answers = _list(value, "answers", where)
    if not answers:
        raise UserError(f"{where} has no answers. Fill them in or remove the row.")
    return answers


def _subjects(names: Sequence[str], text: str) -> tuple[str, ...]:
    """The subjects as the text spells them; one that the text does not have is left out."""
    hits = [re.search(re.escape(name), text) or re.search(re.escape(name), text, re.IGNORECASE)
            for name in names]  # fmt: skip
    return tuple(dict.fromkeys(hit.group() for hit in hits if hit))


def _popularity(value: object, where: str) -> float | None:
    if value is None:
        return None
    text = _text(value, "popularity", where)
    if not text or text.lower() == "nan":
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: popularity must be a number, not {_short(value)}.")
    return number


def _flag(value: object, where: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    text = _text(value, "ambiguous", where).lower()
    if text not in ("", "0", "1", "true", "false", "0.0", "1.0"):
        raise UserError(f"{where}: ambiguous must be true or false, not {_short(value)}.")
    return text in ("1", "true", "1.0")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
