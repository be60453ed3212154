"""TriviaQA (Joshi et al. 2017), unfiltered, without its documents: questions of quiz fans.

A row: QuestionId "tc_1", Question "Which city is the capital of France?", Answer {"Value": "Paris",
"Aliases": ["Paris", "Paris, France", ...]}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anchorscope.datasets.source import HubPlace, Row, Source


def normal(row: Row) -> Row:
    """A row of the authors' JSON, of the hub, or of ours, with the main answer first."""
    if isinstance(answer := row.get("Answer"), Mapping):
        return _row(row.get("QuestionId"), row.get("Question"), answer, "Value", "Aliases")
    if isinstance(answer := row.get("answer"), Mapping):
        return _row(row.get("question_id"), row.get("question"), answer, "value", "aliases")
    if row.get("canonical") and isinstance(answers := row.get("answers"), list):
        return {**row, "answers": [row["canonical"], *answers]}
    return row


def _row(key: object, text: object, answer: Row, value: str, aliases: str) -> Row:
    others = answer.get(aliases) or ()
    names = [answer.get(value), *(others if isinstance(others, Iterable) else ())]
    return {"id": key, "question": text, "answers": [name for name in names if name is not None]}


TRIVIAQA = Source(
    name="triviaqa",
    title="TriviaQA",
    hub=HubPlace(
        path="mandarjoshi/trivia_qa",
        config="unfiltered.nocontext",
        split="validation",
        columns=("question", "question_id", "answer"),
    ),
    normal=normal,
    marks=(
        frozenset({"Question", "QuestionId", "Answer"}),
        frozenset({"question", "question_id", "question_source", "answer"}),
    ),
    stems=("triviaqa", "trivia"),
    formats="the authors' unfiltered JSON ({'Data': [...]})",
)
