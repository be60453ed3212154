"""Answers on their way to a score: where E_A is, and the states and probabilities of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from anchorscope.answers.generate import answer_offsets
from anchorscope.answers.judge_phrases import is_abstention
from anchorscope.answers.normalise import plain
from anchorscope.detect.deployed.trained import Outcome, Trained
from anchorscope.detect.material import Arrays, Material, Text
from anchorscope.engine.transfer import to_host
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.notebook import Line, belief_chart, card
from anchorscope.records import Answer
from anchorscope.spans.answer import answer_span
from anchorscope.spans.characters import tokens_of

NOTHING = "the answer holds no entity to read"
ABSTAINED = "the model declined to answer"
_UNREAD = np.nan
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
    distance: float = np.nan  # share of training answers, held out, that lie nearer; near 1: far
    belief: tuple[float, ...] = ()  # P(wrong) by the probe of each layer, 1 to L

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


def scored_answers(
    trained: Trained,
    answers: Sequence[LocatedAnswer],
    rows: Sequence[int],
    states: States,
    clean: np.ndarray,
) -> list[Scored]:
    """One `Scored` per answer; those without E_A say so instead of giving a number.

    `states` and `clean` [row, layer, width] are those of the answers numbered `rows`.
    """
    out = [_unread(one, trained) for one in answers]
    if not rows:
        return out
    score, probability = trained.score_of(material_of([answers[n] for n in rows], states))
    belief, pathway = _beliefs(trained, clean)
    distance = trained.distance_of(clean)
    for place, n in enumerate(rows):
        if out[n].outcome == "abstained":  # no detector learnt from such answers
            continue
        if not np.isfinite(probability[place]):
            raise UserError(
                f"The answer {answers[n].answer.text!r} got no finite score: the model's state "
                "overflows in this dtype. Use float32."
            )
        q = float(pathway[place])
        out[n] = replace(
            out[n],
            probability=float(probability[place]),
            score=float(score[place]),
            flagged=bool(probability[place] > trained.threshold),
            outcome=trained.outcome(float(probability[place])),
            why="",
            pathway="" if np.isnan(q) else "Q" if q > 0.5 else "A",
            pathway_probability=max(q, 1 - q),
            distance=float(distance[place]),
            belief=tuple(belief[place].tolist()),
        )
    return out


def _unread(one: LocatedAnswer, trained: Trained) -> Scored:
    abstained = bool(plain(one.answer.text)) and is_abstention(one.answer.text)
    return Scored(
        question=one.question,
        answer=one.answer.text,
        answer_entity=one.answer_entity,
        probability=np.nan,
        score=np.nan,
        flagged=False,
        why=ABSTAINED if abstained else NOTHING,
        outcome="abstained" if abstained else "cannot say",
        detector=trained.id,
        threshold=trained.threshold,
        calibrated_on=trained.calibration_set,
    )


def _beliefs(trained: Trained, clean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P(wrong) by layer [row, layer] and P(Q) [row]; of no layer and NaN where none were kept."""
    if trained.beliefs is None:
        return np.empty((len(clean), 0)), np.full(len(clean), np.nan)
    return trained.beliefs.wrong(clean), trained.beliefs.question_anchored(clean)
