"""Detectors over several drawn answers: semantic entropy, agreement, lexical similarity.

Semantic entropy: Kuhn et al. 2023 and Farquhar et al. 2024. Agreement of the greedy answer with the
drawn ones: SelfCheckGPT, Manakul et al. 2023. Lexical similarity: the mean ROUGE-L of pairs.
"""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
from scipy.special import softmax
from scipy.stats import entropy

from anchorscope.answers.normalise import words
from anchorscope.detect.material import Material, Text
from anchorscope.detect.method import Cost, Method
from anchorscope.detect.sampled.answers import SampledAnswers
from anchorscope.detect.sampled.meaning import judged

By = Literal["judge", "nli"]
Weights = Literal["count", "likelihood"]


class _Sampled(Method):
    """A score of each question's drawn answers."""

    learns = False
    deployable = False  # what is drawn is in a run folder

    def lacks(self, material: Material) -> str:
        if any(text.sampled is None for text in material.texts):
            return "no answers were drawn (detect collect --samples 10)"
        return ""

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([self._score(t, t.sampled) for t in material.texts if t.sampled])

    def cost(self, material: Material) -> Cost:
        """The passes and milliseconds that drawing an answer's companions took, on average."""
        drawn = [text.sampled for text in material.texts if text.sampled]
        return Cost(
            float(np.mean([d.passes + self._asked(d)[0] for d in drawn])),
            float(np.mean([d.ms + self._asked(d)[1] for d in drawn])),
        )

    def _asked(self, drawn: SampledAnswers) -> tuple[float, float]:
        """Passes and milliseconds of another model."""
        return 0.0, 0.0

    def _score(self, text: Text, drawn: SampledAnswers) -> float:
        raise NotImplementedError


class _Grouped(_Sampled):
    """A score of the groups of answers that mean the same."""

    def __init__(self, *, by: By = "judge"):
        self.by = by

    def lacks(self, material: Material) -> str:
        unasked = any(t.sampled is not None and t.sampled.nli is None for t in material.texts)
        if self.by == "nli" and unasked:
            return "no NLI model was given (--nli MODEL)"
        return super().lacks(material)

    def _asked(self, drawn: SampledAnswers) -> tuple[float, float]:
        if self.by == "judge" or drawn.nli is None:
            return 0.0, 0.0
        return float(drawn.nli.passes), drawn.nli.ms

    def _meaning(self, text: Text, drawn: SampledAnswers) -> np.ndarray:
        """The group of the greedy answer and of each drawn one, [1 + answer]."""
        if self.by == "nli" and drawn.nli is not None:
            return np.array(drawn.nli.meaning)
        return np.array(judged(text.answer, drawn.texts, question=text.question))


class SemanticEntropy(_Grouped):
    """The entropy, in nats, of what the drawn answers mean.

    A meaning weighs as many answers as it has ("count"), or their likelihood, which is that of
    the token's mean so that a long answer is not an unlikely one ("likelihood").
    """

    def __init__(self, *, by: By = "judge", weights: Weights = "count"):
        super().__init__(by=by)
        self.weights = weights

    @property
    def name(self) -> str:  # type: ignore[override]
        more = {"judge": "", "nli": ", NLI"}[self.by]
        return "semantic entropy" + more + (", likelihood" * (self.weights == "likelihood"))

    def _score(self, text: Text, drawn: SampledAnswers) -> float:
        meaning = self._meaning(text, drawn)[1:]
        return semantic_entropy(meaning, self._weights(drawn))

    def _weights(self, drawn: SampledAnswers) -> np.ndarray:
        if self.weights == "count":
            return np.ones(len(drawn.texts))
        return softmax(np.array(drawn.log_probs) / np.maximum(1, drawn.lengths))


class SelfCheck(_Grouped):
    """The share of drawn answers that do not mean what the greedy answer means."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return "self-check" + {"judge": "", "nli": ", NLI"}[self.by]

    def _score(self, text: Text, drawn: SampledAnswers) -> float:
        meaning = self._meaning(text, drawn)
        return float(np.mean(meaning[1:] != meaning[0]))


class LexicalSimilarity(_Sampled):
    """Minus the mean ROUGE-L of all pairs of drawn answers, over normalised words."""

    name = "lexical similarity"

    def _score(self, text: Text, drawn: SampledAnswers) -> float:
        said = [[word.text for word in words(one)] for one in drawn.texts]
        return -float(np.mean([rouge_l(a, b) for a, b in itertools.combinations(said, 2)]))


def semantic_entropy(meaning: np.ndarray, weights: np.ndarray) -> float:
    """The entropy of the groups' shares of the weights, both [answer]."""
    return float(entropy(np.bincount(meaning, weights=weights)))


def rouge_l(one: list[str], other: list[str]) -> float:
    """F1 of the longest common subsequence of words; two empty answers are alike."""
    if not one and not other:
        return 1.0
    row = [0] * (len(other) + 1)
    for word in one:
        last, row = row, [0]
        for column, beside in enumerate(other):
            row.append(last[column] + 1 if word == beside else max(last[column + 1], row[-1]))
    return 2 * row[-1] / (len(one) + len(other))
