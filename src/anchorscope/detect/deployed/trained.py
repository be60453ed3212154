"""A trained detector as a value: what it learnt, whom it was made for, how good it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorscope.detect.deployed.beliefs import Beliefs
from anchorscope.detect.distance import Distance
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method

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
        if self.distance is None or self.distance.layer > clean.shape[1]:
            return np.full(len(clean), np.nan)
        return self.distance.place(clean[:, self.distance.layer - 1])
