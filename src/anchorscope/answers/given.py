"""Read answers that were written elsewhere: by a server such as vLLM, an API, or people.

A row of the file: id "popqa:test:42", and answer "Paris" or its `token_ids` in the model's own
tokenizer. Each answer is read behind the run's prompt in one pass, and nothing is decoded; sampled
answers and answers of other models are welcome. Other columns are ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anchorscope.datasets.rows import rows_by_id
from anchorscope.datasets.source import Row
from anchorscope.errors import UserError, user_path
from anchorscope.records import Answer, QuestionSet

_COLUMNS = "id and answer, or id and token_ids"


@dataclass(frozen=True, kw_only=True)
class GivenAnswer:
    """An answer of the file, as text or as tokens."""

    text: str | None = None
    token_ids: tuple[int, ...] = ()


GivenAnswers = Mapping[str, GivenAnswer] | None  # by question id


def read_answers_file(path: str | None) -> dict[str, GivenAnswer]:
    """Read a file of answers by question id; empty without a file."""
    if path is None:
        return {}
    rows = rows_by_id(path, "answers", _COLUMNS)
    name = user_path(path).name
    return {id: _given(row, f"Row {n} of {name}") for n, (id, row) in enumerate(rows.items(), 1)}


def _given(row: Row, where: str) -> GivenAnswer:
    text, ids = row.get("answer"), row.get("token_ids")
    if ids is None:
        if not isinstance(text, str):
            raise UserError(f"{where} lacks an answer. Columns needed: {_COLUMNS}.")
        return GivenAnswer(text=text)
    listed = ids.tolist() if isinstance(ids, np.ndarray) else ids  # .parquet has arrays
    try:
        listed = json.loads(listed) if isinstance(listed, str) else listed  # a cell of a .csv file
    except ValueError:
        listed = None
    if not isinstance(listed, list) or not all(type(id) is int and id >= 0 for id in listed):
        raise UserError(f"{where}: its token_ids are no list of token ids, such as [42, 7].")
    return GivenAnswer(token_ids=tuple(listed))


def answers_hash(answers: Mapping[str, GivenAnswer]) -> str | None:
    """Hash ids and answers, independent of the file's name and order; None without any."""
    if not answers:
        return None
    rows = sorted((id, one.text, one.token_ids) for id, one in answers.items())
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def with_answers(
    sets: Sequence[QuestionSet], answers: Mapping[str, GivenAnswer], name: str
) -> list[QuestionSet]:
    """The questions with an answer in the file `name`, all without a file.

    A UserError for a set without any.
    """
    if not answers:
        return [*sets]
    found = []
    for each in sets:
        own = tuple(question for question in each if question.id in answers)
        if not own:
            raise UserError(
                f"{name} has no answer to any of the {len(each)} questions of {each.name}: the ids "
                f"are others (there: {next(iter(answers))}, asked: {each[0].id}). Ids are those of "
                "load_questions; --limit all asks every question."
            )
        left = Counter(each.dropped) + Counter({"without an answer": len(each) - len(own)})
        found.append(replace(each, questions=own, dropped=dict(left)))
    return found


def unread_answer(id: str, text: str, ids: Sequence[int]) -> Answer:
    """An answer whose tokens' probabilities are not known."""
    nan = (np.nan,) * len(ids)
    return Answer(
        id=id, text=text, token_ids=tuple(ids), log_probs=nan, first_entropy=np.nan, finished=True
    )
