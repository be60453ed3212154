"""Answers on their way to a score: where E_A is, and the states of its last token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from anchorscope.answers.generate import answer_offsets
from anchorscope.detect.material import Arrays, Material, Text
from anchorscope.engine.host import to_host
from anchorscope.models import Model
from anchorscope.records import Answer
from anchorscope.spans.answer import answer_span
from anchorscope.spans.tokens import tokens_of

NOTHING = "the answer holds no entity to read"
_UNREAD = np.nan


@dataclass(frozen=True, kw_only=True)
class Found:
    """An answer with its exact tokens, counted from its first token."""

    question: str
    answer: Answer
    exact: tuple[int, ...]
    exact_text: str


def find_exact(model: Model, question: str, answer: Answer) -> Found:
    """The answer with E_A found as in a run: without a gold answer."""
    span = answer_span(answer.text, question=question)
    tokens = tokens_of([span], answer_offsets(model, answer)) if span else ()
    text = answer.text[span.start : span.stop] if span and tokens else ""
    return Found(question=question, answer=answer, exact=tokens, exact_text=text)


def material_of(found: Sequence[Found], states: dict[tuple[str, int], np.ndarray]) -> Material:
    """Fresh answers as a detector's material; `states` by intervention and layer."""
    texts = tuple(
        Text(
            id=f.answer.id,
            question=f.question,
            answer=f.answer.text,
            log_probs=f.answer.log_probs,
            exact=f.exact,
            first_entropy=f.answer.first_entropy,
        )
        for f in found
    )
    layers = max((layer for _, layer in states), default=0)
    return Material(
        name="scored",
        texts=texts,
        z=np.full(len(texts), -1),
        bank=Arrays(states, layers=layers),
        rows=np.arange(len(texts)),
    )


def on_host(states: Tensor) -> np.ndarray:
    """States [row, width] as a run folder would give them back: through half precision."""
    return to_host(states).astype(np.float32)


def unknown_answer(text: str, ids: Sequence[int], number: int) -> Answer:
    """An answer whose token probabilities nobody asked for."""
    return Answer(
        id=str(number),
        text=text.strip(),
        token_ids=tuple(ids),
        log_probs=(_UNREAD,) * len(ids),
        first_entropy=_UNREAD,
        finished=True,
    )
