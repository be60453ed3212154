"""Questions read, and the names in them found, in another process while this one imports torch
and transformers.

Both take seconds of one core, and neither needs the other. The other process is asked once, and
what it cannot do is done here as if nobody had asked: so every error is said by this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Any, NamedTuple, cast

from anchorscope.config import Config
from anchorscope.records import Question, QuestionSet, Shot, Span
from anchorscope.spans.by_rules import KNOWN, rules_spans

# Without the folder that Python looks into first, where a file may be called as a module is.
_COMMAND = (
    "import sys; sys.path[:] = filter(None, sys.path); from anchorscope.ahead import serve; serve()"
)
_WORTH = 1 << 18  # bytes of files: fewer are read before the other process has begun


class Asked(NamedTuple):
    """Which questions: what `load_questions` is told of each set."""

    data: tuple[str, ...]
    limit: int | None
    seed: int
    columns: str | None

    @classmethod
    def of(cls, config: Config) -> Asked:
        return cls(tuple(config.data), config.limit, config.seed, config.columns)


_under_way: dict[Asked, subprocess.Popen[bytes]] = {}


def begin(config: Config) -> bool:
    """Whether another process reads the questions now: of large files, before torch is here."""
    asked = Asked.of(config)
    if "torch" in sys.modules or asked in _under_way or not _worth_it(asked.data):
        return False
    path = os.pathsep.join(part for part in sys.path if part)
    try:
        _under_way[asked] = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, json.dumps(asked)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
    except OSError:
        return False
    return True


def _worth_it(data: Sequence[str]) -> bool:
    if not data or not all(os.path.isfile(name) for name in data):
        return False
    return sum(os.path.getsize(name) for name in data) >= _WORTH


def taken(config: Config) -> list[QuestionSet] | None:
    """The questions that the other process has read; None where there is none, or it could not.

    What it marked in them by rules is known from then on.
    """
    process = _under_way.pop(Asked.of(config), None)
    if process is None:
        return None
    with process, cast(IO[bytes], process.stdout) as answer:
        written = answer.read()
    if process.returncode:
        return None
    told = json.loads(written)
    sets = list(map(_restored, told["sets"]))
    for questions, marks in zip(sets, told["marks"], strict=True):
        KNOWN.update(
            (question.text, tuple(Span(*ends) for ends in spans))
            for question, spans in zip(questions, marks, strict=True)
        )
    return sets


def _restored(of: dict[str, Any]) -> QuestionSet:
    """A set of questions from its fields, in which tuples have become lists."""
    questions = (
        Question(**{**q, "answers": tuple(q["answers"]), "subjects": tuple(q["subjects"])})
        for q in of["questions"]
    )
    shots = {name: tuple(Shot(**shot) for shot in of[name]) for name in ("shots", "retest_shots")}
    return QuestionSet(**{**of, "questions": tuple(questions), **shots})


def serve() -> None:
    """The other process: reads what is asked for, and writes it or fails without a word."""
    from anchorscope.datasets import load_questions

    asked = Asked(*json.loads(sys.argv[1]))
    how: dict[str, Any] = {"limit": asked.limit, "seed": asked.seed, "columns": asked.columns}
    sets = [load_questions(name, **how) for name in asked.data]
    marks = [[rules_spans(question.text) for question in questions] for questions in sets]
    told = {"sets": sets, "marks": marks}
    sys.stdout.write(json.dumps(told, default=vars))  # ASCII, whatever the encoding here
    sys.stdout.flush()
