"""From a score to a probability: Platt's line on scores that no training answer gave itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

_FREE = 1e6  # so weak a penalty that two numbers fitted to hundreds of answers do not feel it

_LEAST = 1e-6  # log-odds for one spread of the scores


@dataclass(frozen=True)
class Platt:
    """log-odds of z = 1 = slope · score + intercept."""

    slope: float
    intercept: float
    prior: float = 0.0  # log-odds of z = 1 among the answers it was fitted on

    @classmethod
    def fit(cls, score: np.ndarray, z: np.ndarray) -> Platt:
        """The line that fits scores [question] to classes; never one that falls.

        A score that sorts the wrong way on held-out training answers says nothing: everybody
        then gets the base rate, all but exactly, so that the order of the scores is kept.
        """
        share = float(np.clip(np.mean(z), 1e-6, 1 - 1e-6))
        prior = float(np.log(share / (1 - share)))
        middle, spread = float(np.mean(score)), float(np.std(score))
        if not spread > 0:
            return cls(0.0, prior, prior)
        solver = LogisticRegression(C=_FREE, max_iter=1000)
        solver.fit((score[:, None] - middle) / spread, z)
        steep, height = (float(np.ravel(of)[0]) for of in (solver.coef_, solver.intercept_))
        if steep < _LEAST:
            steep, height = _LEAST, prior
        return cls(steep / spread, height - steep / spread * middle, prior)

    def log_odds(self, score: np.ndarray) -> np.ndarray:
        """The calibrated log-odds of z = 1, [question]; NaN stays NaN."""
        return self.slope * np.asarray(score, dtype=np.float64) + self.intercept

    def evidence(self, score: np.ndarray) -> np.ndarray:
        """The log-odds less the prior's, [question]: what makes scores of different fits compare.

        With the prior left in, a detector that knows nothing would sort folds by the share of
        wrong answers in the others, which is the wrong way round.
        """
        return self.log_odds(score) - self.prior

    def probability(self, score: np.ndarray) -> np.ndarray:
        """The calibrated probability of z = 1, [question]."""
        return expit(self.log_odds(score))
