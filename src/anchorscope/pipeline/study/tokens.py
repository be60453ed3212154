"""The tokens of a question set, counted with the model's tokenizer or estimated from characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anchorscope.records import QuestionSet

CHARACTERS = 4.2  # of English questions to a token, where no tokenizer is at hand
SAMPLE = 400  # questions that are counted; the others are taken to be as long


@dataclass(frozen=True, kw_only=True)
class TokenCount:
    """Tokens of one dataset as plain text; a chat template adds a few to each turn."""

    dataset: str
    questions: int
    prefix: int  # the worked examples in front of every question
    question: float  # of a question's own turn, on average
    counted: bool  # by the model's tokenizer


def count_tokens(
    sets: Sequence[QuestionSet], tokenizer: Any | None, shots: int
) -> list[TokenCount]:
    """The tokens of each set."""
    return [_count(questions, tokenizer, shots) for questions in sets]


def _count(questions: QuestionSet, tokenizer: Any | None, shots: int) -> TokenCount:
    front = "".join(f"Q: {s.question}\nA: {s.answer}\n\n" for s in questions.shots[:shots])
    turns = [f"Q: {question.text}\nA:" for question in questions.questions[:SAMPLE]]
    lengths = [_length(turn, tokenizer) for turn in turns]
    return TokenCount(
        dataset=questions.name,
        questions=len(questions),
        prefix=round(_length(front, tokenizer)),
        question=sum(lengths) / len(lengths),
        counted=tokenizer is not None,
    )


def _length(text: str, tokenizer: Any | None) -> float:
    if tokenizer is None:
        return len(text) / CHARACTERS
    return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
