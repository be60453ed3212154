"""Baselines over how sure each token was: mean entropy, and a classifier of such numbers."""

from __future__ import annotations

import numpy as np

from anchorscope.detect.kinds.baselines import Columns
from anchorscope.detect.material import Material, Text
from anchorscope.detect.method import Method

_NOT_KEPT = "the entropy of each token was not kept (collect again)"


def _kept(material: Material) -> bool:
    return all(len(text.entropies) == len(text.log_probs) for text in material.texts)


class MeanEntropy(Method):
    """The mean entropy of the distributions that the answer's tokens were chosen from."""

    name = "mean token entropy"
    learns = False
    deployable = False  # scored answers do not come with them

    def lacks(self, material: Material) -> str:
        return "" if _kept(material) else _NOT_KEPT

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([np.mean(text.entropies) for text in material.texts])


class TokenFeatures(Columns):
    """Logistic regression on statistics of log-probability and entropy, and the length."""

    name = "token features"
    text_only = False
    deployable = False

    def lacks(self, material: Material) -> str:
        return "" if _kept(material) else _NOT_KEPT

    def _columns(self, material: Material) -> np.ndarray:
        return np.array([_features(text) for text in material.texts])


def _features(text: Text) -> np.ndarray:
    """Mean, extremes, spread and ends of both, those of E_A, and the number of tokens."""
    probs, entropies = np.array(text.log_probs), np.array(text.entropies)
    exact = list(text.exact_answer)
    numbers = [
        *(f(of) for of in (probs, entropies) for f in (np.mean, np.min, np.max, np.std)),
        *(of[place] for of in (probs, entropies) for place in (0, -1)),
        *(f(of[exact]) for of in (probs, entropies) for f in (np.mean, np.min, np.max)),
        np.log(len(probs)),
    ]
    return np.array(numbers, dtype=np.float64)
