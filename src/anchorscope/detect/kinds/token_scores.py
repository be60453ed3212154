"""Scores of how sure the model was of its tokens: log-probability, entropy, and P(True)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from anchorscope.detect.material import Material, Text
from anchorscope.detect.method import Columns, Method

Reduce = Literal["mean", "min", "sum"]
_REDUCE = {"mean": np.mean, "min": np.min, "sum": np.sum}


class TokenLogProb(Method):
    """Minus the mean, minimum or sum of the log-probabilities of the answer's tokens, or of E_A's.

    Those of E_A alone do not change with a full stop after the answer, or bold around it.
    """

    learns = False
    single = True
    reads_tokens = True

    def __init__(self, *, reduce: Reduce = "mean", entity: bool = False):
        self.reduce: Reduce = reduce
        self.entity = entity

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.reduce} log-prob" + (" of E_A" if self.entity else "")

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        reduce = _REDUCE[self.reduce]
        return np.array([-reduce(self._log_probs(text)) for text in material.texts], dtype=float)

    def _log_probs(self, text: Text) -> list[float]:
        every = range(len(text.log_probs))
        return [text.log_probs[n] for n in (text.exact_answer if self.entity else every)]


class FirstEntropy(Method):
    """The entropy of the first answer token."""

    name = "first-token entropy"
    learns = False
    single = True
    reads_tokens = True

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([text.first_entropy for text in material.texts])


class TokenFeatures(Columns):
    """Logistic regression on statistics of log-probability and entropy, and the length."""

    name = "token features"

    def lacks(self, material: Material) -> str:
        if all(len(text.entropies) == len(text.log_probs) for text in material.texts):
            return ""
        return "the entropy of each token was not kept (collect again)"

    def _columns(self, material: Material) -> np.ndarray:
        return np.array([_token_features(text) for text in material.texts])


def _token_features(text: Text) -> np.ndarray:
    """Mean, extremes, spread and ends of both, those of E_A, and the number of tokens."""
    both = [np.array(text.log_probs), np.array(text.entropies)]
    exact = list(text.exact_answer)
    numbers = [
        *(f(values) for values in both for f in (np.mean, np.min, np.max, np.std)),
        *(values[place] for values in both for place in (0, -1)),
        *(f(values[exact]) for values in both for f in (np.mean, np.min, np.max)),
        np.log(len(text.log_probs)),
    ]
    return np.array(numbers, dtype=np.float64)


class PTrue(Method):
    """One minus the probability the model itself gives "True" when asked about its answer."""

    name = "P(True)"
    learns = False
    single = True
    extra_passes = 1.0

    def lacks(self, material: Material) -> str:
        missing = sum(np.isnan(text.p_true) for text in material.texts)
        return f"P(True) is missing for {missing} answers" if missing else ""

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([1 - text.p_true for text in material.texts])
