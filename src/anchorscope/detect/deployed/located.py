"""Answers with E_A found in them, as material for a detector, and what a detector says of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from anchorscope.answers.generate import answer_offsets
from anchorscope.detect.material import Arrays, Material, Text
from anchorscope.engine.transfer import to_host
from anchorscope.models import Model
from anchorscope.notebook import Line, belief_chart, card
from anchorscope.records import Answer
from anchorscope.spans.answer import answer_span
from anchorscope.spans.characters import tokens_of

Outcome = Literal["wrong", "right", "cannot say", "abstained"]  # the last: declined to answer
States = dict[tuple[str, int], np.ndarray]  # by pass and layer: [answer, width]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """An answer and how likely it is wrong."""

    question: str
    answer: str
    answer_entity: str  # the part of the answer that was read: the text of E_A
    probability: float  # of being wrong, calibrated; NaN where there is nothing to read
    score: float  # before calibration, higher = more likely wrong
    flagged: bool  # probability above the detector's threshold
    outcome: Outcome = "cannot say"  # the same where held-out answers are sure of the threshold
    why: str = ""  # why there is no probability
    pathway: str = ""  # Q or A, as the clean state tells it; "": not known
    pathway_probability: float = np.nan  # of that pathway
    detector: str = ""  # the detector's id
    threshold: float = np.nan  # of the probability
    calibrated_on: str = ""  # the answers that probability and threshold come from
    distance: float = np.nan  # share of training answers, held out, that are nearer; near 1: far
    belief: tuple[float, ...] = ()  # P(wrong) by the probe of each layer, 1 to L

    def __repr__(self) -> str:
        wrong = f"P(wrong) {self.probability:.2f}" + (", flagged" if self.flagged else "")
        pathway = f", pathway {self.pathway}" if self.pathway else ""
        return f"Scored({self.answer!r}, {self.why or wrong}{pathway})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, its probability, and the belief by layer."""
        wrong = self.why or f"{self.probability:.2f}" + (", flagged" if self.flagged else "")
        facts = [("question", self.question), ("P(wrong)", wrong)]
        if self.pathway:
            facts.append(("pathway", f"{self.pathway} ({self.pathway_probability:.0%} sure)"))
        lines = [Line(name="clean", label="clean", values=self.belief)]
        return card(self.answer, facts, picture=belief_chart(lines) if self.belief else "")


@dataclass(frozen=True, kw_only=True)
class LocatedAnswer:
    """An answer with E_A found in it."""

    question: str
    answer: Answer
    exact_answer: tuple[int, ...]  # E_A, counted from the answer's first token
    answer_entity: str  # its text


def locate_answer(model: Model, question: str, answer: Answer) -> LocatedAnswer:
    """The answer with E_A found as in a run: without a gold answer."""
    span = answer_span(answer.text, question=question)
    tokens = tokens_of([span], answer_offsets(model, answer)) if span else ()
    text = answer.text[span.start : span.stop] if span and tokens else ""
    return LocatedAnswer(question=question, answer=answer, exact_answer=tokens, answer_entity=text)


def unknown_answer(
    text: str, ids: Sequence[int], number: int, *, log_prob: float = np.nan
) -> Answer:
    """An answer whose token probabilities are not known, or all the same."""
    return Answer(
        id=str(number),
        text=text.strip(),
        token_ids=tuple(ids),
        log_probs=(log_prob,) * len(ids),
        first_entropy=-log_prob,
        finished=True,
    )


def material_of(answers: Sequence[LocatedAnswer], states: States) -> Material:
    """Fresh answers as a detector's material."""
    texts = tuple(
        Text(
            id=one.answer.id,
            question=one.question,
            answer=one.answer.text,
            log_probs=one.answer.log_probs,
            exact_answer=one.exact_answer,
            first_entropy=one.answer.first_entropy,
        )
        for one in answers
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
    """States [row, ...] as a run folder would give them back: through half precision."""
    return to_host(states).astype(np.float32)
