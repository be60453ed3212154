"""Exact question tokens named by the model under test itself; text in, text out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from anchorscope.errors import UserError
from anchorscope.records import Question, Span
from anchorscope.spans.characters import merged, occurrences

Generate = Callable[[Sequence[str]], Sequence[str]]
EXAMPLES = (
    ("Who was the director of The Third Man?", "director; The Third Man"),
    ("what is the longest river in south america", "longest river; south america"),
    ("Which mountain is higher, Ben Nevis or Snowdon?", "mountain; Ben Nevis; Snowdon"),
    ("In what year did the Berlin Wall fall?", "year; Berlin Wall"),
)


def model_prompt(question: str) -> str:
    """The few-shot text after which the model writes the words the question is about."""
    head = "Copy from each question the words that name what it asks about, separated by ';'.\n\n"
    shots = "".join(f"Question: {text}\nWords: {words}\n\n" for text, words in EXAMPLES)
    return f"{head}{shots}Question: {' '.join(question.split())}\nWords:"


def model_spans(questions: Sequence[Question], generate: Generate) -> list[tuple[Span, ...]]:
    """The spans each question's own reply names; an empty tuple where it names none."""
    replies = generate([model_prompt(question.text) for question in questions])
    if len(replies) != len(questions):
        raise UserError(
            f"The generator gave {len(replies)} texts for {len(questions)} prompts; "
            "it has to give one each, in the same order."
        )
    return [read_reply(q.text, reply) for q, reply in zip(questions, replies, strict=True)]


def read_reply(text: str, reply: str) -> tuple[Span, ...]:
    """Every occurrence in the question of the pieces of the reply's first line."""
    line = next(iter(reply.strip().splitlines()), "")
    spans: list[Span] = []
    for piece in dict.fromkeys(line.split(";")):
        # A name may hold a comma, so the piece is tried whole first.
        whole = _places(text, piece)
        spans += whole or (span for part in piece.split(",") for span in _places(text, part))
    return merged(spans)


def _places(text: str, piece: str) -> tuple[Span, ...]:
    bare = re.sub(r"^[\s\"'“‘*\-]+|[\s\"'”’*.?!,]+$", "", piece)
    return occurrences(text, bare, any_case=True)
