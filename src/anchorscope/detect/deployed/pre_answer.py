"""A warning before the answer: how likely it will be wrong, from the question alone.

A calibrated probe reads the state at the last question token; nothing after it is fed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from anchorscope.detect.deployed.bind import Bound
from anchorscope.detect.deployed.located import Outcome, on_host
from anchorscope.detect.distance import Distance, far_reason, learn_distance
from anchorscope.detect.kinds.probes import QuestionOnly, linear
from anchorscope.detect.material import Material
from anchorscope.detect.method import Platt
from anchorscope.detect.threshold import best_threshold
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.check import require_understood
from anchorscope.engine.decode import Prefix, grow_trunk
from anchorscope.engine.lease import Lease
from anchorscope.spans.characters import tokens_of


@dataclass(frozen=True, kw_only=True)
class PreAnswerProbe:
    """The probe at the last question token, calibrated, with the AUROC it is accepted with."""

    layer: int
    coef: np.ndarray  # [width]
    intercept: float
    calibration: Platt
    threshold: float
    evaluation: dict[str, Any]  # auroc, auroc_low, auroc_high, n: on unseen entities
    distance: Distance | None = None  # from the training questions; None: an early version

    def probability(self, states: np.ndarray) -> np.ndarray:
        """P(wrong) from states [question, width] at the last question token, [question]."""
        return self.calibration.probability(linear(states, self.coef, self.intercept))

    def tensors(self) -> dict[str, np.ndarray]:
        """The arrays that make it up, ready for safetensors."""
        own = {"before.coef": self.coef, "before.intercept": np.array([self.intercept])}
        return own | ({} if self.distance is None else self.distance.tensors("before.distance."))

    def about(self) -> dict[str, Any]:
        """What else makes it up, ready for JSON."""
        kept = {"layer": self.layer, "threshold": self.threshold, "evaluation": self.evaluation}
        return kept | {"calibration": asdict(self.calibration)}

    @classmethod
    def restore(
        cls, tensors: dict[str, np.ndarray], about: dict[str, Any] | None
    ) -> PreAnswerProbe | None:
        """What `tensors` and `about` gave; None where a folder holds none."""
        if about is None:
            return None
        return cls(
            layer=int(about["layer"]),
            coef=tensors["before.coef"],
            intercept=float(tensors["before.intercept"][0]),
            calibration=Platt(**about["calibration"]),
            threshold=float(about["threshold"]),
            evaluation=about["evaluation"],
            distance=Distance.restore(tensors, "before.distance."),
        )


def learn_pre_answer(material: Material, evaluation: dict[str, Any]) -> PreAnswerProbe | None:
    """The probe, trained on the material of a detector; None without the states it reads."""
    probe = QuestionOnly()
    if probe.lacks(material):
        return None
    probe.fit(material)
    held_out = probe.calibration_.probability(probe.inner_scores_)
    return PreAnswerProbe(
        layer=probe.layer_,
        coef=probe.coef_,
        intercept=probe.intercept_,
        calibration=Platt.fit(probe.inner_scores_, material.z),
        threshold=best_threshold(held_out, material.z),
        evaluation=evaluation,
        distance=learn_distance(material, states="question-only", layer=probe.layer_),
    )


@dataclass(frozen=True, kw_only=True)
class Warned:
    """A question and how likely the model's answer to it will be wrong."""

    question: str
    probability: float  # of a wrong answer, calibrated, before a token of it is written
    outcome: Outcome  # what the answer will be, as far as the question tells
    reason: str = ""  # why it cannot say
    flagged: bool = field(init=False)  # every outcome but "right"
    threshold: float = np.nan
    distance: float = np.nan  # share of training questions, held out, that are nearer
    detector: str = ""  # the detector's id

    def __post_init__(self) -> None:
        object.__setattr__(self, "flagged", self.outcome != "right")


def warn_all(
    probe: PreAnswerProbe, bound: Bound, questions: Sequence[str], detector: str
) -> list[Warned]:
    """The warnings in the order of the questions."""
    require_understood(bound.model)
    prompts = list(enumerate(_up_to_question(bound, question) for question in questions))
    found: dict[int, np.ndarray] = {}
    with Lease(bound.model) as lease:
        for batch, states in in_batches(
            prompts,
            lambda batch: _states(lease, bound, [p for _, p in batch], probe),
            length=lambda one: len(one[1]),
            then=lambda one: one[0],
            budget=Budget.of(bound.model),
        ):
            found |= {n: state for (n, _), state in zip(batch, states, strict=True)}
    states = np.array([found[n] for n in range(len(questions))]).reshape(len(questions), -1)
    distances = np.full(len(questions), np.nan)
    if probe.distance is not None and len(states):
        distances = probe.distance.place(states)
    return [
        _warned(probe, question, float(probability), float(distance), detector)
        for question, probability, distance in zip(
            questions, probe.probability(states), distances, strict=True
        )
    ]


def _warned(
    probe: PreAnswerProbe, question: str, probability: float, distance: float, detector: str
) -> Warned:
    reason = far_reason(distance)
    outcome: Outcome = "wrong" if probability > probe.threshold else "right"
    return Warned(
        question=question,
        probability=probability,
        outcome="cannot say" if reason else outcome,
        reason=reason,
        threshold=probe.threshold,
        distance=distance,
        detector=detector,
    )


def _up_to_question(bound: Bound, question: str) -> tuple[int, ...]:
    """The prompt's tokens up to the last one of the question."""
    prompt = bound.checked_prompt(question)
    return prompt.ids[: tokens_of([prompt.question], prompt.offsets)[-1] + 1]


def _states(
    lease: Lease, bound: Bound, prompts: Sequence[tuple[int, ...]], probe: PreAnswerProbe
) -> np.ndarray:
    """The states [question, width] at the last token of each prompt, as a run folder has them."""
    shared = bound.shared
    fits = all(len(p) > len(shared) and p[: len(shared)] == shared for p in prompts)
    prefix = bound.prefix(lease) if fits else Prefix((), None)
    grown = grow_trunk(lease, prefix, prompts, room=0, head=False)
    return on_host(grown.last.states[:, probe.layer - 1])
