"""Questions made ready to be asked: prompts as tokens, and the tokens that matter in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anchorscope.engine.trunk import shared_prefix
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.models.prompts import make_prompt
from anchorscope.records import Question, QuestionSet, Span
from anchorscope.spans.question import Found
from anchorscope.spans.tokens import tokens_of


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A question as the model will see it."""

    question: Question
    found: Found
    prompt_ids: tuple[int, ...]
    question_tokens: tuple[int, ...]
    exact_question: tuple[int, ...]


def prepare(
    model: Model, given: QuestionSet, found: Sequence[Found], *, style: str, shots: int
) -> list[Prepared]:
    """Each question with its prompt and token positions, in the set's order."""
    return [
        _prepare(model, question, marks, given, style, shots)
        for question, marks in zip(given, found, strict=True)
    ]


def _prepare(
    model: Model, question: Question, found: Found, given: QuestionSet, style: str, shots: int
) -> Prepared:
    prompt = make_prompt(model, question.text, shots=given.shots[:shots], style=style)
    offsets = prompt.question_offsets()
    return Prepared(
        question=question,
        found=found,
        prompt_ids=prompt.ids,
        question_tokens=tokens_of([Span(0, len(question.text))], offsets),
        exact_question=tokens_of(found.spans, offsets),
    )


def common_prefix(prepared: Sequence[Prepared]) -> tuple[int, ...]:
    """The tokens in front of every question: the worked examples, never a question's own token."""
    lost = [p.question.id for p in prepared if not p.question_tokens]
    if lost:
        raise UserError(
            f"{len(lost)} questions have no token of their own in the prompt (first: {lost[0]}). "
            "The tokenizer drops their characters: leave them out, or use another model."
        )
    stop = min(p.question_tokens[0] for p in prepared)
    return shared_prefix([p.prompt_ids for p in prepared], stop=stop)
