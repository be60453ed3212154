"""Split question sets, and hold many questions in little memory."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import overload

from anchorscope.records import Question, QuestionSet

_BLOCK = 256  # questions compressed together
_FIELDS = tuple(field.name for field in fields(Question))


class PackedQuestions(Sequence[Question]):
    """Questions as compressed JSON: 20 to 150 bytes each, instead of the 1.5 kB of objects.

    An item, a slice or an iteration makes new `Question` objects.
    """

    def __init__(self, questions: Sequence[Question]) -> None:
        self._count = len(questions)
        self._blocks = [
            zlib.compress(json.dumps([_row(q) for q in questions[start : start + _BLOCK]]).encode())
            for start in range(0, len(questions), _BLOCK)
        ]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Question]:
        for number in range(len(self._blocks)):
            yield from self._unpacked(number)

    @overload
    def __getitem__(self, at: int) -> Question: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Question, ...]: ...
    def __getitem__(self, at: int | slice) -> Question | tuple[Question, ...]:
        places = range(self._count)[at]
        if isinstance(places, int):
            return self._unpacked(places // _BLOCK)[places % _BLOCK]
        if not places:
            return ()
        first = min(places) // _BLOCK
        found = [q for n in range(first, max(places) // _BLOCK + 1) for q in self._unpacked(n)]
        return tuple(found[place - first * _BLOCK] for place in places)

    def _unpacked(self, number: int) -> list[Question]:
        rows = json.loads(zlib.decompress(self._blocks[number]))
        lists = [{name: tuple(row[name]) for name in ("answers", "subjects")} for row in rows]
        return [Question(**row | own) for row, own in zip(rows, lists, strict=True)]


def _row(question: Question) -> dict[str, object]:
    """The fields of a question; `vars` would leave a dictionary in each object."""
    return {name: getattr(question, name) for name in _FIELDS}


def split_sets(
    sets: Sequence[QuestionSet], most: int
) -> tuple[list[QuestionSet], list[QuestionSet]]:
    """Split each set into the questions that probes learn from, at most `most`, and the rest.

    The order of a set is random, and the same for every `limit`: a run of more questions learns
    from those of a run with the limit `most`. All questions of a larger set are new objects, so
    that the memory of the old ones is free.
    """
    learnt, rest = [], []
    for each in sets:
        if len(each) <= most:
            learnt.append(each)
            continue
        learnt.append(replace(each, questions=PackedQuestions(each.questions[:most])[:]))
        rest.append(replace(each, questions=PackedQuestions(each.questions[most:]), dropped={}))
    return learnt, rest
