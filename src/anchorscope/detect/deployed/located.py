"""Answers with E_A found in them, as material for a detector, and what a detector says of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pandas as pd
from torch import Tensor

from anchorscope.answers.generate import answer_offsets
from anchorscope.detect.answer_parts import answer_parts
from anchorscope.detect.material import Arrays, Material, Text
from anchorscope.engine.transfer import to_host
from anchorscope.models import Model
from anchorscope.records import Answer, Span
from anchorscope.spans.characters import tokens_of

# "cannot say": the threshold is open there, or the answer is unlike all that was learnt from;
# "no answer": it declines, is empty, or names nothing.
Outcome = Literal["right", "wrong", "cannot say", "no answer"]
SpanKind = Literal["entity", "sentence"]
States = dict[tuple[str, int], np.ndarray]  # by pass and layer: [answer, width]


@dataclass(frozen=True, kw_only=True)
class ScoredSpan:
    """An entity or a sentence of an answer and how likely it is wrong."""

    start: int  # characters of the answer as it is given back
    end: int
    text: str
    kind: SpanKind
    probability: float  # of a sentence: that of its worst entity; NaN where it names nothing
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Scored:
    """An answer and how likely it is wrong."""

    question: str
    answer: str
    answer_entity: str  # the part of the answer that was read: the text of E_A
    probability: float  # of being wrong, calibrated; NaN where there is nothing to read
    score: float  # before calibration, higher = more likely wrong
    outcome: Outcome
    reason: str = ""  # why there is no answer, or why it cannot say
    flagged: bool = field(init=False)  # every outcome but "right"
    spans: tuple[ScoredSpan, ...] = ()  # entities and sentences, in the order of the text
    predicted_pathway: str = ""  # Q or A, as the clean state predicts it; "": not known
    predicted_pathway_probability: float = np.nan
    detector: str = ""  # the detector's id
    threshold: float = np.nan  # of the probability
    calibrated_on: str = ""  # the answers that probability and threshold come from
    distance: float = np.nan  # share of training answers, held out, that are nearer; near 1: far
    belief: tuple[float, ...] = ()  # P(wrong) by the probe of each layer, 1 to L

    def __post_init__(self) -> None:
        object.__setattr__(self, "flagged", self.outcome != "right")

    def __repr__(self) -> str:
        return f"Scored({self.answer!r}, {self.outcome}, P(wrong) {self.probability:.2f})"

    @property
    def worst(self) -> ScoredSpan | None:
        """The entity that is most likely wrong; None where the answer names nothing."""
        entities = [span for span in self.spans if span.kind == "entity"]
        return max(entities, key=lambda span: span.probability, default=None)

    def _repr_html_(self) -> str:
        """Its fields as a table, for notebooks; pandas escapes every text."""
        return to_frame([self]).T.to_html(header=False)


def to_frame(scored: Sequence[Scored], *, spans: bool = False) -> pd.DataFrame:
    """Scored answers as a table: a row for each answer, or for each of its sentences and entities.

    Rows of spans have the number of their answer in `answer`.
    """
    if spans:
        return pd.DataFrame(
            [{"answer": n} | asdict(span) for n, one in enumerate(scored) for span in one.spans]
        )
    return pd.DataFrame([asdict(one) for one in scored]).drop(columns=["spans", "belief"])


@dataclass(frozen=True, kw_only=True)
class Entity:
    """An entity of an answer: its characters, its tokens, and the sentence it is in."""

    span: Span
    tokens: tuple[int, ...]  # E_A, counted from the answer's first token; one at least
    sentence: Span


@dataclass(frozen=True, kw_only=True)
class LocatedAnswer:
    """An answer with its entities found in it; none where it names nothing."""

    question: str
    answer: Answer
    entities: tuple[Entity, ...]
    own: bool = False  # written by the model just now, as the answers that it was trained on


class WithTokenizer(NamedTuple):
    """As much of a model as finding entities takes."""

    tokenizer: Any


def locate_answer(
    model: Model | WithTokenizer, question: str, answer: Answer, *, every: bool = False
) -> LocatedAnswer:
    """The answer with its entity found as in a run, without a gold answer; or `every` entity."""
    offsets, found = answer_offsets(cast(Model, model), answer), []
    for sentence, spans in answer_parts(answer.text, question=question, every=every):
        for span in spans:
            if tokens := tokens_of([span], offsets):
                found.append(Entity(span=span, tokens=tokens, sentence=sentence))
    return LocatedAnswer(question=question, answer=answer, entities=tuple(found))


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
    """The entities of fresh answers as a detector's material; states [entity, width]."""
    texts = tuple(
        Text(
            id=one.answer.id,
            question=one.question,
            answer=one.answer.text,
            log_probs=one.answer.log_probs,
            exact_answer=entity.tokens,
            first_entropy=one.answer.first_entropy,
        )
        for one in answers
        for entity in one.entities
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
