"""The column rule: how a row becomes a question.

Required: `question`, and `answers` (a list, a JSON list as text, or "a | b") or `answer` (one
text, or a list). Optional: `id`, `subject` or `subjects`, `relation` or `property`, `popularity`,
`entity`, `split`, `ambiguous`. Text is text: nothing in a row is evaluated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from anchorscope.datasets.source import Draft, Row
from anchorscope.datasets.text import digest, normalised, one_line
from anchorscope.errors import UserError
from anchorscope.records import Question

NEEDED = "question, answers"
OPTIONAL = "id, subject, relation, popularity, entity, split, ambiguous"
SPLITS = {"validation": "dev", "valid": "dev", "val": "dev"}  # one name for the same split


def check_columns(rows: Sequence[Row], where: str) -> None:
    """Raises where no row at all has a needed column."""
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
    """What tells a row apart in its dataset."""

    split: str
    id: str  # empty where the row gives none


def key_of(row: Row, default: str, where: str) -> Key:
    """The row's split, `default` where it says none, and its id."""
    return Key(split_of(row, default, where), original_id(row, where))


def draft(row: Row, key: Key, *, dataset: str, where: str) -> Draft:
    """The question a row with our columns holds; `where` names the row in errors."""
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


def original_id(row: Row, where: str) -> str:
    """The id that the row gives, or nothing."""
    return _line(row.get("id"), "id", where)


def split_of(row: Row, default: str, where: str) -> str:
    """The row's split; a colon would break the id in the wrong place."""
    split = _line(row.get("split"), "split", where).lower().replace(":", "-") or default
    return SPLITS.get(split, split)


_HALF = re.compile("[\ud800-\udfff]")  # of a character: a lone surrogate


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
    if not text.isascii() and _HALF.search(text):
        raise UserError(f"{where}: {column} holds half a character (a lone surrogate).")
    return text


def _list(value: object, column: str, where: str) -> tuple[str, ...]:
    """The different texts of a list, a JSON list, or "a | b"."""
    if isinstance(value, str):
        value = (
            _json_list(value, column, where) if value.lstrip().startswith("[") else value.split("|")
        )
    if value is None:
        return ()
    items = value if isinstance(value, list | tuple) else [value]
    texts = [_line(item, column, where) for item in items]
    return tuple(dict.fromkeys([text for text in texts if text]))


def _json_list(value: str, column: str, where: str) -> list[object]:
    try:
        items = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where}: {column} begins with [ but is no JSON list: {_short(value)}. "
            'Write ["a", "b"] or a | b.'
        ) from error
    return items


def _answers(row: Row, where: str) -> tuple[str, ...]:
    value = row.get("answers")
    if value is None:  # a single answer may have | or [ in it, so it is not taken apart
        one = row.get("answer")
        value = [one] if isinstance(one, str) else one
    answers = _list(value, "answers", where)
    if not answers:
        raise UserError(f"{where} has no answers. Fill them in or remove the row.")
    return answers


def _subjects(named: Iterable[str], text: str) -> tuple[str, ...]:
    """The subjects as the text spells them; one that the text does not have is left out."""
    spelt = (name if name in text else _otherwise_spelt(name, text) for name in named)
    return tuple(dict.fromkeys(name for name in spelt if name))


def _otherwise_spelt(name: str, text: str) -> str | None:
    hit = re.search(re.escape(name), text, re.IGNORECASE)
    return hit and hit.group()


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
