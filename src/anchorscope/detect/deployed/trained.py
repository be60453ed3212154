"""A trained detector as a value: what it learnt, whom it was made for, how good it was."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from anchorscope.detect.deployed.before import Before
from anchorscope.detect.deployed.beliefs import Beliefs
from anchorscope.detect.distance import Distance
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method
from anchorscope.detect.threshold import Promise

Outcome = Literal["wrong", "right", "cannot say", "abstained"]  # the last: declined to answer
WIDE = 0.1  # an interval of AUROC beyond which a detector is not to be relied on
READ_AT = "the last token of the answer entity (E_A)"


@dataclass(frozen=True, kw_only=True)
class Example:
    """A question and the very tokens it was asked with: the prompt, and a test of the tokenizer."""

    question: str
    prompt_ids: tuple[int, ...]
    dataset: str = ""  # whose worked examples stand in front


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A fitted detector with everything that is needed to use it on new questions."""

    name: str  # short name of the method: probe, mop, pr, ...
    method: Method
    model: dict[str, Any]  # name, source, adapter, revision, weights, dtype, blocks, width
    prompt: dict[str, Any]  # style, shots, max_tokens, finder
    examples: tuple[Example, ...]  # some of every dataset
    threshold: float  # of the probability
    calibrated_on: str
    trained_on: dict[str, Any]  # datasets and counts
    evaluation: dict[str, Any]  # the numbers it was accepted with
    licence: dict[str, str]
    beliefs: Beliefs | None = None  # None: saved by a version that kept none
    distance: Distance | None = None  # from the training states; None: likewise
    before: Before | None = None  # the warning from the question alone; None: the run kept none
    band: tuple[float, float] | None = None  # probabilities of which it cannot say; None: likewise
    promise: Promise | None = None  # what the threshold was chosen to keep, if anything

    @cached_property
    def id(self) -> str:
        """Twelve letters that only this detector has: of its weights, calibration and threshold."""
        digest = hashlib.sha256(f"{self.name} {self.method.calibration_} {self.threshold}".encode())
        for name, array in sorted(self.method.tensors().items()):
            digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:12]

    @property
    def caution(self) -> str:
        """What is to be said of a detector that was trained on too few answers; else empty."""
        low, high = self.evaluation.get("auroc_low"), self.evaluation.get("auroc_high")
        if low is None or high is None or high - low <= WIDE:
            return ""
        answers, wrong = self.trained_on["answers"], self.trained_on["wrong"]
        chance = ", which may be no better than chance" if low <= 0.5 else ""
        return (
            f"Trained on few answers: {answers}, {wrong} of them wrong. Its AUROC is only known to "
            f"lie between {low:.2f} and {high:.2f}{chance}. Collect more before you rely on it."
        )

    @property
    def calibration_set(self) -> str:
        """The answers that probability and threshold were calibrated on, in a few words."""
        on = f"{self.trained_on['answers']} answers of {', '.join(self.trained_on['datasets'])}"
        if self.promise is None:
            return on
        return f"{on}; threshold on {self.promise.answers} others"

    def outcome(self, probability: float) -> Outcome:
        """What is said of an answer with this probability of being wrong."""
        low, high = self.band or (self.threshold, self.threshold)
        if probability > high:
            return "wrong"
        return "right" if probability <= low else "cannot say"  # NaN is neither

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets whose prompts it knows: questions are asked as in one of them."""
        return tuple(dict.fromkeys(example.dataset for example in self.examples))

    def score_of(self, material: Material) -> tuple[np.ndarray, np.ndarray]:
        """Score and calibrated probability of each answer of the material, [question] each."""
        score = self.method.decision_function(material)
        return score, self.method.calibration_.probability(score)

    def distance_of(self, clean: np.ndarray) -> np.ndarray:
        """The share of held-out training answers that lie nearer than each of these, [question].

        From states [question, layer, width]; NaN where the detector keeps no distance.
        """
        if self.distance is None:
            return np.full(len(clean), np.nan)
        return self.distance.place(clean[:, self.distance.layer - 1])
