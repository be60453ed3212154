"""Read rows of your own: `question`, `messages` or `prompt`, with `answer` and `label`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anchorscope.datasets.from_file import read_rows
from anchorscope.detect.deployed.exchanges import Exchange
from anchorscope.errors import UserError
from anchorscope.models.prompts import short

FORMS = ("question", "messages", "prompt")  # of what was answered
_RIGHT = ("right", "correct", "true", "yes")
_WRONG = ("wrong", "incorrect", "false", "no")


def rows_of_file(place: str | Path) -> list[dict[str, Any]]:
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


def exchange_of(row: Mapping[str, Any], where: str) -> Exchange:
    """The exchange in a row; a UserError that says which row has none."""
    given = {name: row[name] for name in FORMS if row.get(name) not in (None, "")}
    answer = row.get("answer")
    if not isinstance(answer, str) or len(given) != 1:
        raise UserError(
            f"{where} has {' and '.join(f'`{name}`' for name in given) or 'no prompt'} and "
            f"the `answer` {short(str(answer))}. A row needs one of `question`, `messages` and "
            "`prompt`, and an `answer`, which is a text."
        )
    ((form, value),) = given.items()
    try:
        if form != "messages":
            text: Any = {form: str(value)}
            return Exchange(answer=answer, **text)
        turns = json.loads(value) if isinstance(value, str) else list(value)
        return Exchange(answer=answer, messages=tuple(dict(turn) for turn in turns))
    except (ValueError, TypeError, UserError) as error:
        raise UserError(f"{where}: its `{form}` cannot be read. {error}") from error


def is_right(label: Any, where: str) -> bool:
    """Whether a label says right: a word, true or false, or a number from 0.5 on."""
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
