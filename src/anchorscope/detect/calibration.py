"""Calibrate scores to probabilities, and choose thresholds, also for a guaranteed risk."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from scipy.special import expit, logit
from scipy.stats import binom
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_curve

from anchorscope.errors import UserError
from anchorscope.stats.drawing import count_blocks
from anchorscope.stats.intervals import LEVEL

CONFIDENCE = 0.9  # of a promised risk, over draws of the calibration answers
_CUTS = 50  # thresholds that are tested, in a fixed order
_RESAMPLES = 500
_FREE = 1e6  # a penalty too weak to change two numbers fitted to hundreds of answers
_LEAST = 1e-6  # least slope: log-odds per standard deviation of the scores
_EDGE = 1e-6  # keeps the log-odds of a share of wrong answers finite

Calibration = Literal["platt", "isotonic"]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**9)]
LogOdds = Annotated[float, Field(ge=-1e3, le=1e3)]


@dataclass(frozen=True)
class Platt:
    """Platt scaling: the log-odds of z = 1 are slope · score + intercept.

    scikit-learn's sigmoid calibration is private outside CalibratedClassifierCV (which fits the
    classifier too), allows a negative slope, and gives a constant score not quite the base rate.
    """

    slope: Annotated[float, Field(ge=0, le=1e12)]  # a falling line would call right answers wrong
    intercept: Annotated[float, Field(ge=-1e12, le=1e12)]
    prior: LogOdds = 0.0  # log-odds of z = 1 among the answers it was fitted on

    @classmethod
    def fit(cls, score: np.ndarray, z: np.ndarray) -> Platt:
        """Fit the line to scores [question] and classes; the slope is never negative.

        A score that ranks held-out training answers the wrong way carries no information: every
        answer then gets nearly the base rate, with a tiny slope that keeps the order of scores.
        """
        prior = _prior(z)
        middle, spread = float(np.mean(score)), float(np.std(score))
        if not spread > 0:
            return cls(0.0, prior, prior)
        solver = LogisticRegression(C=_FREE, max_iter=1000)
        solver.fit((score[:, None] - middle) / spread, z)
        steep, height = float(np.ravel(solver.coef_)[0]), float(np.ravel(solver.intercept_)[0])
        if steep < _LEAST:
            steep, height = _LEAST, prior
        return cls(steep / spread, height - steep / spread * middle, prior)

    def evidence(self, score: np.ndarray) -> np.ndarray:
        """The log-odds minus the prior's, [question], comparable across fits.

        With the prior, an uninformative detector would rank each fold by the share of wrong
        answers in the other folds, which is the wrong way round.
        """
        return self.slope * np.asarray(score, dtype=np.float64) + self.intercept - self.prior

    def probability(self, score: np.ndarray) -> np.ndarray:
        """The calibrated probability of z = 1, [question]."""
        return expit(self.slope * np.asarray(score, dtype=np.float64) + self.intercept)


@dataclass(frozen=True)
class Isotonic:
    """Isotonic calibration: P(z = 1) rises with the score in steps, interpolated linearly."""

    scores: Annotated[tuple[float, ...], Field(min_length=1, max_length=100_000)]  # rising
    probabilities: tuple[Share, ...]
    prior: LogOdds = 0.0

    @classmethod
    def fit(cls, score: np.ndarray, z: np.ndarray) -> Isotonic:
        """Fit rising steps to scores [question] and classes; probabilities are never 0 or 1."""
        edge = 1 / (len(z) + 2)
        steps = IsotonicRegression(y_min=edge, y_max=1 - edge).fit(score, z)
        scores, probabilities = steps.X_thresholds_.tolist(), steps.y_thresholds_.tolist()
        return cls(tuple(scores), tuple(probabilities), _prior(z))

    def evidence(self, score: np.ndarray) -> np.ndarray:
        """The log-odds minus the prior's, [question]."""
        return logit(self.probability(score)) - self.prior

    def probability(self, score: np.ndarray) -> np.ndarray:
        """The calibrated probability of z = 1, [question]."""
        return np.interp(np.asarray(score, dtype=np.float64), self.scores, self.probabilities)


def _prior(z: np.ndarray) -> float:
    return float(logit(np.clip(np.mean(z), _EDGE, 1 - _EDGE)))


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A guarantee with a confidence: at most `risk` of the answers up to a threshold are wrong."""

    risk: Annotated[float, Field(gt=0, lt=1)]
    confidence: Annotated[float, Field(gt=0, lt=1)]
    entities: Count  # of the calibration set; one answer about each is counted
    accepted: Count  # answers of these, up to the threshold
    wrong: Count  # of the accepted ones

    @property
    def supported(self) -> bool:
        """Whether an exact binomial test on the accepted answers rejects a risk above `risk`."""
        found = binom.cdf(self.wrong, self.accepted, self.risk)
        return bool(found <= 1 - self.confidence)

    def __str__(self) -> str:
        return (
            f"at most {self.risk:.0%} of the answers let through (outcome right) are wrong, with "
            f"{self.confidence:.0%} confidence over draws of the {self.entities} calibration "
            f"entities, one answer each ({self.accepted} accepted, {self.wrong} of them wrong). It "
            "holds for new answers that are exchangeable with these: same model, prompt and kind "
            "of question. On other traffic nothing is promised"
        )


def best_threshold(probability: np.ndarray, z: np.ndarray) -> float:
    """The probability above which to flag an answer, by Youden's index.

    It maximises the share of wrong answers above it plus the share of right answers up to it.
    """
    false, true, cut = roc_curve(z, probability)
    best = int(np.argmax(true - false))
    # Infinite where flagging no answer is best; no probability is above 1.
    least = min(float(cut[best]), 1.0)
    # Flagged means above the threshold: half-way to the next lower probability that was seen.
    lower = probability[probability < least]
    return float((least + lower.max()) / 2) if len(lower) else 0.0


def threshold_band(
    probability: np.ndarray, z: np.ndarray, *, entity: np.ndarray | None = None, seed: int = 0
) -> tuple[float, float]:
    """The 95 % bootstrap interval of the best threshold; entities are resampled if given.

    Between its ends the detector cannot say: other answers of the same kind could have put the
    threshold on either side. Few answers, or a weak score, make it wide.
    """
    blocks = count_blocks(len(z), seed=seed, resamples=_RESAMPLES, entity=entity)
    draws = [times for block in blocks for times in block.T if 0 < times @ z < times.sum()]
    cuts = [best_threshold(np.repeat(probability, n), np.repeat(z, n)) for n in draws]
    middle = best_threshold(probability, z)
    low, high = np.quantile(cuts, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return min(float(low), middle), max(float(high), middle)


def risk_threshold(
    probability: np.ndarray,
    z: np.ndarray,
    entity: np.ndarray,
    *,
    risk: float,
    cuts: np.ndarray,
    seed: int = 0,
) -> tuple[float, Promise]:
    """The highest cut up to which at most `risk` of the answers are wrong, and its promise.

    Learn then Test (Angelopoulos et al., 2021): an exact binomial test of each cut, from the most
    trusted answers on, up to the first that is not rejected. `cuts` must not come from these
    answers. Answers about one entity are right or wrong together, so one of each entity is drawn
    and counted. Conformal risk control in expectation is for losses that rise with the threshold;
    the share of wrong answers among the accepted ones need not.
    """
    shuffled = np.random.default_rng(seed).permutation(len(z))
    one_each = shuffled[np.unique(entity[shuffled], return_index=True)[1]]
    probability, z = probability[one_each], z[one_each]
    fewest = max(math.log(1 - CONFIDENCE) / math.log(1 - risk), len(z) / 10)
    found = None
    for cut in np.unique(np.quantile(cuts, np.linspace(0, 1, _CUTS))):
        accepted = probability <= cut
        count, wrong = int(accepted.sum()), int(z[accepted].sum())
        if count < fewest:  # by their number alone, so that no test is spent on them
            continue
        promise = Promise(
            risk=risk, confidence=CONFIDENCE, entities=len(z), accepted=count, wrong=wrong
        )
        if not promise.supported:
            break
        found = float(cut), promise
    if found is None:
        raise UserError(
            f"A risk of {risk:g} cannot be promised: no threshold keeps the share of wrong answers "
            f"below it with {CONFIDENCE:.0%} confidence on {len(z)} calibration entities, one "
            f"answer each ({int(z.sum())} wrong). Collect more answers, or allow a higher risk."
        )
    return found
