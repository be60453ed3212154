"""Files of questions and answers: read, scored a portion at a time, written with their scores."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
from pyarrow import ArrowException

from anchorscope.datasets.from_file import extension, read_rows
from anchorscope.detect.prompts import Exchange
from anchorscope.detect.scored import Scored
from anchorscope.errors import UserError, short, unknown
from anchorscope.progress import Progress, Quiet

Fields = dict[str, Any]
PORTION = 128  # rows that are scored together
FORMS = ("question", "messages", "prompt")  # of what was answered
ENDS = (".jsonl", ".csv", ".parquet")
_INPUT = ("question", "answer")  # the row's own, not new fields
_RIGHT = ("right", "correct", "true", "yes")
_WRONG = ("wrong", "incorrect", "false", "no")


# --- What a row holds ---


def rows_of_file(place: str | Path) -> list[Fields]:
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


def read_questions(path: str | Path) -> list[Fields]:
    """The rows of a file to score: what was asked, and an `answer` that is a text or missing.

    Rows with `messages` or `prompt` need an answer; that to a `question` the model can write.
    """
    name = "standard input" if str(path) == "-" else Path(path).name
    # In a CSV file a missing value is an empty one.
    empty = ("",) if extension(Path(path)) in (".csv", ".tsv") else ()
    rows = rows_of_file(path)
    for number, row in enumerate(rows, 1):
        where = f"Row {number} of {name}"
        if any(row.get(form) not in (None, "") for form in ("messages", "prompt")):
            exchange_of(row, where)
            continue
        question, answer = row.get("question"), row.get("answer")
        if not isinstance(question, str) or not question.strip():
            found = "no `question`" if question in (None, "") else f"the `question` {question!r}"
            raise UserError(f"{where} has {found}. A question is a text that is not empty.")
        if answer in empty:
            row["answer"] = None
        elif not isinstance(answer, str | None):
            raise UserError(
                f'{where} has the `answer` {answer!r}. An answer is a text: put it in "".'
            )
    return rows


# --- Rows with their scores ---


def check_names(rows: Sequence[Mapping[str, Any]], prefix: str, *, kind: type = Scored) -> None:
    """Raise a UserError where a row has a field that a score of this class would write over."""
    new = {prefix + field.name for field in fields(kind) if field.name not in _INPUT}
    taken = sorted({name for row in rows for name in row} & new)
    if taken:
        raise UserError(
            f"The rows have fields of their own called {', '.join(taken)}. Rename them, or give "
            "--prefix WORD, which is put in front of the new fields' names."
        )


def scored_fields(scored: Any, prefix: str = "") -> Fields:
    """What a score (a dataclass) says, as fields that JSON knows; what is not known is None."""
    return {
        name if name in _INPUT else prefix + name: value
        for name, value in plain(asdict(scored)).items()
        if name != "question"
    }


def joined(row: Mapping[str, Any], scored: Mapping[str, Any]) -> Fields:
    """The row with its score; an answer that was given stays as it was given."""
    own = {k: v for k, v in row.items() if k != "answer" or v is not None}
    return {**own, **{name: value for name, value in scored.items() if name not in own}}


def plain(value: Any) -> Any:
    """The value for JSON, which knows no NaN: what is not known is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def json_line(row: Mapping[str, Any]) -> str:
    """The row as one line of JSON."""
    return json.dumps(plain(row), ensure_ascii=False, allow_nan=False, default=str)


def check_out(out: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise a UserError where the file could not be written; makes its folder where it is missing.

    Before anything is scored: what cannot be written would be lost.
    """
    if extension(out) not in ENDS:
        raise unknown("kind of file for --out", out.name, ENDS)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The folder '{out.parent}' of --out cannot be made: {error.strerror or error}. Give "
            "a place that can be written to."
        ) from error
    if not os.access(out.parent, os.W_OK) or out.is_dir():
        raise UserError(f"--out '{out}' cannot be written. Give a file in a folder of yours.")
    if extension(out) == ".parquet":
        _parquet(rows, out)


def write_rows(out: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write all rows in the format that the file's name says, in one step."""
    unfinished = out.with_name(f".{out.name}.unfinished")
    if extension(out) == ".jsonl":
        unfinished.write_text("".join(json_line(row) + "\n" for row in rows), encoding="utf-8")
    elif extension(out) == ".csv":
        _frame([{k: _cell(v) for k, v in row.items()} for row in rows]).to_csv(
            unfinished, index=False
        )
    else:
        unfinished.write_bytes(_parquet(rows, out))
    os.replace(unfinished, out)


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows, a column for every name that some row has; numbers stay as they were read."""
    return pd.DataFrame(list(rows), dtype=object)


def _cell(value: Any) -> Any:
    """The value as a cell: lists and the like as JSON, what is not known as nothing."""
    value = plain(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _parquet(rows: Sequence[Mapping[str, Any]], out: Path) -> bytes:
    try:
        return _frame(rows).to_parquet(index=False)
    except ArrowException as error:
        raise UserError(
            f"The rows cannot be written as {out.name}, since the values of a field are of several "
            f"kinds ({' '.join(map(str, error.args)).splitlines()[0]}). Write .jsonl instead."
        ) from error


# --- Scoring a file, and continuing one that was stopped ---


# Scores rows of a file: a dataclass with `flagged` each.
Scorer = Callable[[Sequence[Mapping[str, Any]], Progress], Sequence[Any]]


class _OneStage(Quiet):
    """Passes on every step, but not the start of each portion: all of them are one stage."""

    def __init__(self, listener: Progress) -> None:
        self.advance, self.note = listener.advance, listener.note


@dataclass(frozen=True)
class ScoredFile:
    """How many rows of a file were scored and flagged."""

    rows: int
    flagged: int
    kept: int  # rows that an earlier scoring had done


def score_portions(
    rows: Sequence[Mapping[str, Any]],
    score: Scorer,
    *,
    prefix: str = "",
    done: int = 0,
    progress: Progress | None = None,
) -> Iterator[list[Fields]]:
    """The new fields of each row, a portion at a time, from row `done` on.

    The portions do not depend on what was done before, so a continued scoring gives the numbers of
    an undisturbed one.
    """
    progress = progress or Quiet()
    progress.start("scores", len(rows) - done)
    for start in range(done, len(rows), PORTION):
        part = rows[start : start + PORTION]
        yield [scored_fields(one, prefix) for one in score(part, _OneStage(progress))]


def score_file(
    rows: Sequence[Mapping[str, Any]],
    score: Scorer,
    out: Path,
    *,
    made_by: Mapping[str, Any],
    prefix: str = "",
    progress: Progress | None = None,
) -> ScoredFile:
    """Write the rows with their scores to `out`, continuing an earlier scoring that was stopped.

    Portions that were scored are in a file beside `out`. `made_by` tells one scoring from another:
    detector and model.
    """
    texts = [[row.get(name) for name in (*FORMS, "answer")] for row in rows]
    identity = json.dumps([texts, dict(made_by), prefix, PORTION], sort_keys=True, default=str)
    journal = out.with_name(f".{out.name}.partial")
    scored = _begun(journal, hashlib.sha256(identity.encode()).hexdigest())
    kept = len(scored)
    for portion in score_portions(rows, score, prefix=prefix, done=kept, progress=progress):
        _append(journal, portion)
        scored += portion
    write_rows(out, [joined(row, new) for row, new in zip(rows, scored, strict=True)])
    journal.unlink()
    flagged = sum(bool(new[f"{prefix}flagged"]) for new in scored)
    return ScoredFile(rows=len(rows), flagged=flagged, kept=kept)


def _begun(journal: Path, identity: str) -> list[Fields]:
    """The fields of the rows that are done, in whole portions; begins a journal where none is."""
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    lines = [line for line in lines if line.endswith(b"\n")]  # not one that a kill cut off
    try:
        begun: list[Any] = [json.loads(line) for line in lines]
    except ValueError:
        begun = [None]
    if begun and begun[0] != identity:
        raise UserError(
            f"'{journal}' holds the beginning of another scoring: of other questions, "
            "another detector or another model. Remove it, or give another --out."
        )
    if begun:
        os.truncate(journal, sum(map(len, lines)))
    else:
        journal.unlink(missing_ok=True)
        _append(journal, identity)
    return [one for portion in begun[1:] for one in portion]


def _append(journal: Path, value: Any) -> None:
    """Add a line; it is on the disk when this returns."""
    with journal.open("ab") as file:
        file.write(json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
