"""Verdicts from a file, which replace the judge's.

A row: id "popqa:test:42", right 1. `right` is 1 or 0, true or false, "right" or "wrong"; the
optional `abstained` is 1 where the model declined to answer, and then `right` may be empty.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anchorscope.datasets.from_file import read_rows
from anchorscope.datasets.source import Row
from anchorscope.errors import UserError, user_path
from anchorscope.records import Verdict

_RIGHT = {"1": True, "true": True, "right": True, "0": False, "false": False, "wrong": False}
ACCEPTED = "1, true or right, and 0, false or wrong"


@dataclass(frozen=True)
class Counted:
    """How many questions of a run have a verdict given, and how many ids are of no question."""

    given: int
    judged: int  # questions without one: the judge decides
    unknown: int  # ids of the file that no question of the run has

    def sentence(self, name: str) -> str:
        """The counts in words, as they are printed when the run starts."""
        text = f"{name} gives the verdict on {self.given} answers; the judge decides {self.judged}"
        return f"{text}; {self.unknown} ids are of no question here" if self.unknown else text


def read_verdicts(path: str | None) -> dict[str, Verdict]:
    """Verdict by question id; empty without a file."""
    if path is None:
        return {}
    file = user_path(path)
    if not file.is_file():
        raise UserError(
            f"There is no file '{path}' with verdicts. Give a .csv or .jsonl file with the columns "
            "id and right."
        )
    verdicts: dict[str, Verdict] = {}
    for number, row in enumerate(read_rows(file), 1):
        where = f"Row {number} of {file.name}"
        id = str(row.get("id") or "").strip()
        if not id or not {"right", "abstained"} & row.keys():
            raise UserError(f"{where} lacks an id or a verdict. Columns needed: id, right.")
        if id in verdicts:
            raise UserError(f"{where} has the id '{id}' a second time. Give each id once.")
        verdicts[id] = _verdict(row, where)
    return verdicts


def _verdict(row: Row, where: str) -> Verdict:
    cells = {name: str(row.get(name) or "0").strip().lower() for name in ("right", "abstained")}
    unreadable = [text for text in cells.values() if text.removesuffix(".0") not in _RIGHT]
    if unreadable:
        raise UserError(f"{where}: '{unreadable[0]}' is no verdict. Accepted: {ACCEPTED}.")
    right, abstained = (_RIGHT[text.removesuffix(".0")] for text in cells.values())
    return "abstain" if abstained else "right" if right else "wrong"


def verdicts_hash(verdicts: Mapping[str, Verdict]) -> str | None:
    """A hash of ids and verdicts, whatever the file's name and order; None without any."""
    if not verdicts:
        return None
    return hashlib.sha256(json.dumps(sorted(verdicts.items())).encode()).hexdigest()[:16]


def count(verdicts: Mapping[str, Verdict], ids: Iterable[str], name: str) -> Counted:
    """The counts for these questions; an error where the file has none of their ids."""
    questions = set(ids)
    given = len(questions & verdicts.keys())
    if not given:
        raise UserError(
            f"{name} has no verdict on any of the {len(questions)} questions of this run: the ids "
            f"are others (there: {next(iter(verdicts))}, asked: {min(questions)}). Ids are those "
            "of samples.parquet."
        )
    return Counted(given=given, judged=len(questions) - given, unknown=len(verdicts) - given)
