"""Score a file of questions a portion at a time, and continue a scoring that was stopped.

Scores are added to a file beside the one to write. The portions do not depend on what was done
before, so a continued scoring gives the numbers of an undisturbed one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from anchorscope.detect.deployed.detector import Detector
from anchorscope.detect.rows.files import Fields, joined, scored_fields, write_rows
from anchorscope.errors import UserError
from anchorscope.progress import Progress, Quiet

PORTION = 128  # rows


class Scorer(Protocol):
    """Scores rows of a file: a dataclass with `flagged` each."""

    def __call__(self, rows: Sequence[Mapping[str, Any]], progress: Progress) -> Sequence[Any]: ...


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
    """The new fields of each row, a portion at a time, from row `done` on."""
    progress = progress or Quiet()
    progress.start("scores", len(rows) - done)
    for start in range(done, len(rows), PORTION):
        part = rows[start : start + PORTION]
        scored = score(part, _OneStage(progress))
        yield [scored_fields(one, prefix) for one in scored]


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

    `made_by` tells one scoring from another: detector and model.
    """
    journal = Journal(out, identity=_identity(rows, made_by, prefix))
    scored = journal.read()
    kept = len(scored)
    for portion in score_portions(rows, score, prefix=prefix, done=kept, progress=progress):
        journal.add(portion)
        scored += portion
    write_rows(out, [joined(row, new) for row, new in zip(rows, scored, strict=True)])
    journal.remove()
    flagged = sum(bool(new[f"{prefix}flagged"]) for new in scored)
    return ScoredFile(rows=len(rows), flagged=flagged, kept=kept)


def maker_of(detector: Detector) -> Fields:
    """What makes a detector's scores: itself, and its model's weights."""
    return {
        "detector": detector.id,
        "band": detector.band,
        "weights": detector.model.get("weights"),
    }


def _identity(rows: Sequence[Mapping[str, Any]], made_by: Mapping[str, Any], prefix: str) -> str:
    texts = [
        [row.get(name) for name in ("question", "messages", "prompt", "answer")] for row in rows
    ]
    text = json.dumps([texts, dict(made_by), prefix, PORTION], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Journal:
    """The portions that were scored so far, in a file beside the one to write."""

    def __init__(self, out: Path, *, identity: str) -> None:
        self.file = out.with_name(f".{out.name}.partial")
        self.identity = identity

    def read(self) -> list[Fields]:
        """The new fields of the rows that are done, whole portions alone; begins a new file."""
        if not self.file.exists():
            self._append(self.identity)
            return []
        lines = self.file.read_bytes().splitlines(keepends=True)
        # A line that a kill cut off has no line end.
        lines = [line for line in lines if line.endswith(b"\n")]
        try:
            whole: list[Any] = [json.loads(line) for line in lines]
        except ValueError:
            whole = [None]
        if whole and whole[0] != self.identity:
            raise UserError(
                f"'{self.file}' holds the beginning of another scoring: of other questions, "
                "another detector or another model. Remove it, or give another --out."
            )
        os.truncate(self.file, sum(map(len, lines)))
        if not whole:
            self._append(self.identity)
        return [fields for portion in whole[1:] for fields in portion]

    def add(self, portion: Sequence[Fields]) -> None:
        """Add a portion; it is on the disk when this returns."""
        self._append(list(portion))

    def _append(self, value: Any) -> None:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        with self.file.open("ab") as file:
            file.write(text.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """Remove the file: all of its rows are in the output."""
        self.file.unlink(missing_ok=True)
