"""A warning before the answer: how likely it will be wrong, from the question alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anchorscope.detect.deployed.before import Before
from anchorscope.detect.deployed.bind import Bound
from anchorscope.detect.deployed.located import on_host
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.check import require_understood
from anchorscope.engine.lease import Lease
from anchorscope.engine.trunk import Prefix, grow_trunk
from anchorscope.spans.characters import tokens_of


@dataclass(frozen=True, kw_only=True)
class Warned:
    """A question and how likely the model's answer to it will be wrong."""

    question: str
    probability: float  # of a wrong answer, calibrated, before a token of it is written
    flagged: bool  # probability above the warning's threshold
    threshold: float
    detector: str = ""  # the detector's id


def warn_all(before: Before, bound: Bound, questions: Sequence[str], detector: str) -> list[Warned]:
    """The warnings in the order of the questions; nothing after the question is read."""
    require_understood(bound.model)
    numbered = list(enumerate(_up_to_question(bound, question) for question in questions))
    found: dict[int, float] = {}
    with Lease(bound.model) as lease:
        for batch, probability in in_batches(
            numbered,
            lambda batch: before.probability(_states(lease, bound, [p for _, p in batch], before)),
            length=lambda one: len(one[1]),
            then=lambda one: one[0],
            budget=Budget.of(bound.model),
        ):
            found |= {n: float(p) for (n, _), p in zip(batch, probability, strict=True)}
    return [
        Warned(
            question=question,
            probability=found[number],
            flagged=found[number] > before.threshold,
            threshold=before.threshold,
            detector=detector,
        )
        for number, question in enumerate(questions)
    ]


def _up_to_question(bound: Bound, question: str) -> tuple[int, ...]:
    """The prompt's tokens up to the last one of the question."""
    prompt = bound.checked_prompt(question)
    return prompt.ids[: tokens_of([prompt.question], prompt.offsets)[-1] + 1]


def _states(
    lease: Lease, bound: Bound, prompts: Sequence[tuple[int, ...]], before: Before
) -> np.ndarray:
    """The states [question, width] at the last token of each prompt, as a run folder has them."""
    shared = bound.shared
    fits = all(len(p) > len(shared) and p[: len(shared)] == shared for p in prompts)
    prefix = bound.prefix(lease) if fits else Prefix((), None)
    grown = grow_trunk(lease, prefix, prompts, room=0, head=False)
    return on_host(grown.last.states[:, before.layer - 1])
