"""Baselines that read how sure the model was of its tokens; nothing is trained."""

from __future__ import annotations

from typing import Literal

import numpy as np

from anchorscope.detect.material import Material, Text
from anchorscope.detect.method import Method
from anchorscope.errors import unknown

Over = Literal["answer", "exact"]
Reduce = Literal["mean", "min", "sum"]
_REDUCE = {"mean": np.mean, "min": np.min, "sum": np.sum}


class TokenLogProb(Method):
    """Minus the mean, minimum or sum of log-probabilities, over the whole answer or E_A alone."""

    learns = False
    reads_tokens = True

    def __init__(self, *, reduce: Reduce = "mean", over: Over = "answer"):
        self.reduce = reduce
        self.over = over

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.reduce} log-prob" + (" on E_A" if self.over == "exact" else "")

    def lacks(self, material: Material) -> str:
        if self.over == "exact":
            lost = sum(max(t.exact, default=-1) >= len(t.log_probs) for t in material.texts)
            return f"{lost} answers have no log-probability on E_A" if lost else ""
        return ""

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        if self.reduce not in _REDUCE:
            raise unknown("reduce", self.reduce, tuple(_REDUCE))
        reduce = _REDUCE[self.reduce]
        return np.array([-reduce(self._values(t)) for t in material.texts], dtype=np.float64)

    def _values(self, text: Text) -> list[float]:
        if self.over == "exact":
            return [text.log_probs[n] for n in text.exact]
        return list(text.log_probs)


class Perplexity(Method):
    """The perplexity of the whole answer."""

    name = "perplexity"
    learns = False
    reads_tokens = True

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([np.exp(-np.mean(text.log_probs)) for text in material.texts])


class FirstEntropy(Method):
    """The entropy of the first answer token."""

    name = "first-token entropy"
    learns = False
    reads_tokens = True

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([text.first_entropy for text in material.texts])


class PTrue(Method):
    """One minus the probability the model itself gives "True" when asked about its answer."""

    name = "P(True)"
    learns = False
    deployable = False
    extra_passes = 1.0

    def lacks(self, material: Material) -> str:
        missing = sum(np.isnan(text.p_true) for text in material.texts)
        return f"P(True) is missing for {missing} answers" if missing else ""

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([1 - text.p_true for text in material.texts])
