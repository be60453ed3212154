"""What `anchorscope detect score` is asked, and its scores as printed lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anchorscope.cli.terminal import echo
from anchorscope.detect.rows.files import joined, json_line, read_questions
from anchorscope.detect.rows.score_file import Scorer, score_portions
from anchorscope.errors import UserError
from anchorscope.progress import Progress


def asked(file: Path | None, question: str | None, answer: str | None) -> list[dict[str, Any]]:
    """The rows of the file, or the one question that was given instead."""
    if (file is None) == (question is None):
        raise UserError("Give either a file or --question, and not both.")
    if file is not None:
        if answer is not None:
            raise UserError(
                "--answer belongs to --question. The answers to a file's questions stand in its "
                "column `answer`."
            )
        return read_questions(file)
    if not str(question).strip():
        raise UserError("--question is empty. Give the text of a question.")
    return [{"question": question} | ({} if answer is None else {"answer": answer})]


def print_scores(
    rows: Sequence[Mapping[str, Any]], score: Scorer, *, prefix: str, progress: Progress
) -> None:
    """Prints each row with its score as a line of JSON, as soon as it is there."""
    waiting = iter(rows)
    for portion in score_portions(rows, score, prefix=prefix, progress=progress):
        for scored in portion:
            echo(json_line(joined(next(waiting), scored)))
