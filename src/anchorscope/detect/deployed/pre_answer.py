"""A warning before the answer: how likely it will be wrong, from the question alone.

A calibrated probe reads the state at the last question token; nothing after it is fed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anchorscope.detect.deployed.bind import Bound
from anchorscope.detect.deployed.located import on_host
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

    def probability(self, states: np.ndarray) -> np.ndarray:
        """P(wrong) from states [question, width] at the last question token, [question]."""
        return self.calibration.probability(linear(states, self.coef, self.intercept))

    def tensors(self) -> dict[str, np.ndarray]:
        """The arrays that make it up, ready for safetensors."""
        return {"before.coef": self.coef, "before.intercept": np.array([self.intercept])}

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
        calibration=probe.calibration_,
        threshold=best_threshold(held_out, material.z),
        evaluation=evaluation,
    )


@dataclass(frozen=True, kw_only=True)
class Warned:
    """A question and how likely the model's answer to it will be wrong."""

    question: str
    probability: float  # of a wrong answer, calibrated, before a token of it is written
    flagged: bool  # probability above the warning's threshold
    threshold: float
    detector: str = ""  # the detector's id


def warn_all(
    probe: PreAnswerProbe, bound: Bound, questions: Sequence[str], detector: str
) -> list[Warned]:
    """The warnings in the order of the questions."""
    require_understood(bound.model)
    prompts = list(enumerate(_up_to_question(bound, question) for question in questions))
    found: dict[int, float] = {}
    with Lease(bound.model) as lease:
        for batch, probability in in_batches(
            prompts,
            lambda batch: probe.probability(_states(lease, bound, [p for _, p in batch], probe)),
            length=lambda one: len(one[1]),
            then=lambda one: one[0],
            budget=Budget.of(bound.model),
        ):
            found |= {n: float(p) for (n, _), p in zip(batch, probability, strict=True)}
    return [
        Warned(
            question=question,
            probability=found[number],
            flagged=found[number] > probe.threshold,
            threshold=probe.threshold,
            detector=detector,
        )
        for number, question in enumerate(questions)
    ]


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
