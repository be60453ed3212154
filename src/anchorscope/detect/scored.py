"""Results of a detector: the score of an answer, and the warning before an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
import pandas as pd

# "cannot say": the threshold is uncertain there, or the answer is unlike the training answers;
# "no answer": it declines, is empty, or names nothing.
Outcome = Literal["right", "wrong", "cannot say", "no answer"]
_GRAVITY: dict[Outcome, int] = {"right": 0, "no answer": 1, "cannot say": 2, "wrong": 3}


@dataclass(frozen=True)
class ScoredSpan:
    """An entity or a sentence of an answer and how likely it is wrong."""

    start: int  # in characters of `Scored.answer`
    end: int
    text: str
    kind: Literal["entity", "sentence"]
    probability: float  # of a sentence: that of its worst entity
    outcome: Outcome

    @property
    def weight(self) -> tuple[int, float]:
        """Sort key of spans by gravity: the outcome, then the probability of being wrong."""
        return _GRAVITY[self.outcome], self.probability


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

    def _repr_html_(self) -> str:
        """The fields as an HTML table, for notebooks; pandas escapes every text."""
        return to_frame([self]).T.to_html(header=False)


@dataclass(frozen=True, kw_only=True)
class Warned:
    """A question and how likely the model's answer to it will be wrong."""

    question: str
    probability: float  # of a wrong answer, calibrated, before a token of it is written
    outcome: Outcome  # predicted from the question alone
    reason: str = ""  # why it cannot say
    flagged: bool = field(init=False)  # every outcome but "right"
    threshold: float = np.nan
    distance: float = np.nan  # share of training questions, held out, that are nearer
    detector: str = ""  # the detector's id

    def __post_init__(self) -> None:
        object.__setattr__(self, "flagged", self.outcome != "right")


def to_frame(scored: Sequence[Scored], *, spans: bool = False) -> pd.DataFrame:
    """Scored answers as a table: a row for each answer, or for each of its sentences and entities.

    Rows of spans have the number of their answer in `answer`.
    """
    if spans:
        return pd.DataFrame(
            [{"answer": n} | asdict(span) for n, one in enumerate(scored) for span in one.spans]
        )
    return pd.DataFrame([asdict(one) for one in scored]).drop(columns=["spans", "belief"])
