"""How the probes' noise falls with more answers to learn from, read off their disagreement.

Probes a and b learn from disjoint answers and would be one probe if each had all there are. So
what they do not share of a sample's residual is their own error, whose variance falls as one over
the number of answers; what they share stays. The paper probe learns from the answers of both: its
error is the mean of theirs, with half of the variance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from anchorscope.pathways.one_law import correlation
from anchorscope.pathways.two_pathways.looks import PROBES

# How the errors of paper, a and b go together: that of paper is the mean of the others.
_ERRORS = np.array([[1, 2**-0.5, 2**-0.5], [2**-0.5, 1, 0], [2**-0.5, 0, 1]])
_LEAST = 0.05  # of the noise's variance that stays, however many answers


@dataclass(frozen=True)
class Learning:
    """Variances of the noise, [probe] each: what stays, and what falls."""

    n: int  # samples of the run
    shared: np.ndarray
    own: np.ndarray  # of probes that learnt from a run of n samples

    def noise_at(self, n: int) -> np.ndarray:
        """The covariance of the noise [probe, probe] in a run of n samples."""
        own = np.sqrt(self.own * self.n / n)
        return np.sqrt(np.outer(self.shared, self.shared)) + _ERRORS * np.outer(own, own)


def learning_of(left: Mapping[str, np.ndarray], noise: Mapping[str, float]) -> Learning:
    """The parts of each probe's noise, from residuals [question] and the noise's spread."""
    together = float(np.clip(correlation(left["a"], left["b"]), 0.0, 1.0))
    unshared = {"paper": (1 - together) / (1 + together), "a": 1 - together, "b": 1 - together}
    variance = np.array([noise[p] ** 2 for p in PROBES])
    total = np.array([left[p].var() for p in PROBES])  # with the humps, which are shared
    own = np.minimum(total * [unshared[p] for p in PROBES], (1 - _LEAST) * variance)
    return Learning(n=len(left["paper"]), shared=variance - own, own=own)
