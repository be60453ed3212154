"""The base class of detectors: fit on material, score answers, calibrate by Platt's line."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from scipy.special import expit, logit
from sklearn.base import BaseEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from anchorscope.detect.material import Material
from anchorscope.errors import UserError
from anchorscope.stats.ranking import auroc

_FREE = 1e6  # so weak a penalty that two numbers fitted to hundreds of answers do not feel it
_LEAST = 1e-6  # log-odds for one spread of the scores


Calibration = Literal["platt", "isotonic"]


class Cost(NamedTuple):
    """What an answer's score takes beside writing the answer and computing the score."""

    passes: float  # forward passes
    ms: float


class Method(BaseEstimator):
    """A detector in scikit-learn's style whose samples are a `Material`.

    A subclass says how it chooses (`_choose`), learns (`_learn`) and scores
    (`decision_function`). Choosing and calibrating see the training material alone.
    """

    name: ClassVar[str] = ""
    learns: ClassVar[bool] = True  # False: the score is the same whatever it was fitted on
    text_only: ClassVar[bool] = False  # a control that never looks into the model
    reads_tokens: ClassVar[bool] = False  # needs the log-probability of every answer token
    single: ClassVar[bool] = False  # a baseline that others are to beat out of domain too
    extra_passes: ClassVar[float] = 0.0  # forward passes beside those that wrote the answer
    calibration_: Platt | Isotonic
    inner_auroc_: float  # on held-out training answers
    inner_scores_: np.ndarray  # [question], of the training answers, held out

    def lacks(self, material: Material) -> str:
        """What the detector needs and the material has not; empty where nothing is missing."""
        return ""

    def fit(self, material: Material, y: None = None) -> Method:
        """The detector itself, chosen, calibrated and trained on the material."""
        if reason := self.lacks(material):
            raise UserError(f"The detector '{self.name}' cannot be used here: {reason}.")
        self._choose(material)
        tried = self.__dict__.pop("_tried", None)
        scores = self._inner_scores(material) if tried is None else tried
        self.inner_auroc_ = auroc(material.z, scores)
        self.calibration_ = Platt.fit(scores, material.z)
        self.inner_scores_ = scores
        self._learn(material)
        return self

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]; higher means more likely wrong."""
        raise NotImplementedError

    def layers(self) -> tuple[int, ...]:
        """The layers (from 1) whose clean states a fitted detector reads."""
        return ()

    def cost(self, material: Material) -> Cost:
        """The extra passes of an answer of the material, and the milliseconds known of them."""
        return Cost(self.extra_passes, 0.0)

    def tensors(self) -> dict[str, np.ndarray]:
        """The arrays that make up a fitted detector, ready for safetensors."""
        return {}

    def about(self) -> dict[str, Any]:
        """What else makes it up, ready for JSON."""
        return {}

    def restore(self, tensors: dict[str, np.ndarray], about: dict[str, Any]) -> Method:
        """The detector itself, as fitted as the one that gave `tensors` and `about`."""
        return self

    def _choose(self, material: Material) -> None:
        """Choose layer, strength, β on the training material."""

    def _choose_value(self, attribute: str, values: Sequence[float], material: Material) -> None:
        """Set the attribute to the value with the highest inner AUROC."""
        known = self.__dict__.pop("_tried", None)  # of the value it has, from the choice before
        scores = {}
        for value in values:
            if known is not None and value == getattr(self, attribute):
                scores[value] = known
                continue
            one = copy.copy(self)
            setattr(one, attribute, value)
            scores[value] = one._inner_scores(material)
        best = max(values, key=lambda value: auroc(material.z, scores[value]))
        setattr(self, attribute, best)
        self._tried = scores[best]  # for `fit`, which would train the same again

    def _learn(self, material: Material) -> None:
        """Train with what was chosen."""

    def _inner_scores(self, material: Material) -> np.ndarray:
        """Scores [question] of the training answers, each from a fit that did not see it."""
        if not self.learns:
            return self.decision_function(material)
        scores = np.full(len(material), np.nan)
        for held, rest, out in material.inner_parts():
            part = copy.copy(self)
            part._learn(rest)
            scores[held] = part.decision_function(out)
        return scores


class Columns(Method):
    """Logistic regression on a few standardised numbers of each answer."""

    single = True

    def _columns(self, material: Material) -> np.ndarray:
        """The numbers of each answer, [question, column]."""
        raise NotImplementedError

    def _learn(self, material: Material) -> None:
        x = self._columns(material)
        scaler = StandardScaler().fit(x)
        solver = LogisticRegression(class_weight="balanced").fit(scaler.transform(x), material.z)
        self.coef_ = solver.coef_[0] / np.asarray(scaler.scale_)
        self.intercept_ = float(solver.intercept_[0] - self.coef_ @ scaler.mean_)

    def decision_function(self, material: Material) -> np.ndarray:
        """The logit of each answer, [question]."""
        return self._columns(material) @ self.coef_ + self.intercept_


@dataclass(frozen=True)
class Platt:
    """log-odds of z = 1 = slope · score + intercept.

    scikit-learn's sigmoid calibration is private outside CalibratedClassifierCV (which wants to
    fit the classifier too), lets the line fall, and gives a constant score not quite the base rate.
    It draws the classes towards each other: with 50 answers 0.001 to 0.012 nats better on new
    ones, with 100 up to 0.003, from 300 on less than 0.0004.
    """

    slope: float
    intercept: float
    prior: float = 0.0  # log-odds of z = 1 among the answers it was fitted on

    @classmethod
    def fit(cls, score: np.ndarray, z: np.ndarray) -> Platt:
        """The line that fits scores [question] to classes; never one that falls.

        A score that sorts the wrong way on held-out training answers says nothing: every answer
        then gets the base rate, all but exactly, so that the order of the scores is kept.
        """
        share = float(np.clip(np.mean(z), 1e-6, 1 - 1e-6))
        prior = float(np.log(share / (1 - share)))
        middle, spread = float(np.mean(score)), float(np.std(score))
        if not spread > 0:
            return cls(0.0, prior, prior)
        solver = LogisticRegression(C=_FREE, max_iter=1000)
        solver.fit((score[:, None] - middle) / spread, z)
        steep, height = float(np.ravel(solver.coef_)[0]), float(np.ravel(solver.intercept_)[0])
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


@dataclass(frozen=True)
class Isotonic:
    """P(z = 1) rises with the score by steps, with a straight line between their ends."""

    scores: tuple[float, ...]  # rising
    probabilities: tuple[float, ...]
    prior: float = 0.0  # log-odds of z = 1 among the answers it was fitted on

    @classmethod
    def fit(cls, score: np.ndarray, z: np.ndarray) -> Isotonic:
        """The rising steps that fit scores [question] to classes; never 0 or 1."""
        share = float(np.clip(np.mean(z), 1e-6, 1 - 1e-6))
        edge = 1 / (len(z) + 2)
        steps = IsotonicRegression(y_min=edge, y_max=1 - edge, out_of_bounds="clip").fit(score, z)
        return cls(
            tuple(steps.X_thresholds_.tolist()),
            tuple(steps.y_thresholds_.tolist()),
            float(np.log(share / (1 - share))),
        )

    def probability(self, score: np.ndarray) -> np.ndarray:
        """The calibrated probability of z = 1, [question]."""
        score = np.asarray(score, dtype=np.float64)
        return np.interp(score, self.scores, self.probabilities)

    def evidence(self, score: np.ndarray) -> np.ndarray:
        """The log-odds less the prior's, [question]."""
        return logit(self.probability(score)) - self.prior


def calibrate(kind: Calibration, score: np.ndarray, z: np.ndarray) -> Platt | Isotonic:
    """The calibration of this kind, fitted to held-out scores [question]."""
    return Isotonic.fit(score, z) if kind == "isotonic" else Platt.fit(score, z)
