"""Detectors over several sampled answers to one question: semantic entropy and self-check.

Semantic entropy: Kuhn et al. 2023 and Farquhar et al. 2024, each meaning weighed by how many
answers have it. Agreement of the greedy answer with the sampled ones: SelfCheckGPT, Manakul et
al. 2023. Two answers mean the same if the judge takes one for right where the other is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.stats import entropy

from anchorscope.answers.judge import is_abstention, judge
from anchorscope.detect.material import Material, SampledAnswers, Text
from anchorscope.detect.method import Cost, Method


class _OverSamples(Method):
    """A score of what the greedy answer and each question's sampled answers mean."""

    learns = False

    def lacks(self, material: Material) -> str:
        if any(text.sampled is None for text in material.texts):
            return "no answers were drawn (detect collect --samples 10)"
        return ""

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]."""
        return np.array([self._score(_meanings(t, t.sampled)) for t in material.texts if t.sampled])

    def cost(self, material: Material) -> Cost:
        """The mean passes and milliseconds that sampling took for an answer."""
        sampled = [text.sampled for text in material.texts if text.sampled]
        passes, ms = ([getattr(one, name) for one in sampled] for name in ("passes", "ms"))
        return Cost(float(np.mean(passes)), float(np.mean(ms)))

    def _score(self, meanings: np.ndarray) -> float:
        """The score from the meaning of the greedy answer, then of each sampled one."""
        raise NotImplementedError


class SemanticEntropy(_OverSamples):
    """The entropy, in nats, of what the sampled answers mean."""

    name = "semantic entropy"

    def _score(self, meanings: np.ndarray) -> float:
        return float(entropy(np.bincount(meanings[1:])))


class SelfCheck(_OverSamples):
    """The share of sampled answers that do not mean what the greedy answer means."""

    name = "self-check"

    def _score(self, meanings: np.ndarray) -> float:
        return float(np.mean(meanings[1:] != meanings[0]))


def _meanings(text: Text, sampled: SampledAnswers) -> np.ndarray:
    """The meaning of the greedy answer and of each sampled one, [1 + answer]; numbers from 0.

    An answer joins the first group whose first member means the same, as in Kuhn et al.
    """
    firsts: list[str] = []
    numbers = []
    for answer in (text.answer, *sampled.texts):
        group = _group_of(answer, firsts, text.question)
        if group == len(firsts):
            firsts.append(answer)
        numbers.append(group)
    return np.array(numbers)


def _group_of(answer: str, firsts: Sequence[str], question: str) -> int:
    """The number of the first answer that means the same; how many there are where none does."""
    same = (n for n, first in enumerate(firsts) if same_answer(first, answer, question))
    return next(same, len(firsts))


@lru_cache(maxsize=2**16)
def same_answer(one: str, other: str, question: str) -> bool:
    """Whether the judge takes one of two answers for right if the other is accepted.

    Either way round, because one of them may be a sentence. All abstentions are alike.
    """
    if is_abstention(one) or is_abstention(other):
        return is_abstention(one) and is_abstention(other)
    return "right" in (judge(a, [b], question=question) for a, b in ((one, other), (other, one)))
