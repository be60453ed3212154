"""The base class of detectors: fit on material, score answers, calibrate."""

from __future__ import annotations

import copy

import numpy as np
from sklearn.base import BaseEstimator

from anchorscope.detect.calibration import Isotonic, Platt
from anchorscope.detect.material import Material
from anchorscope.errors import UserError
from anchorscope.stats.ranking import auroc


class Method(BaseEstimator):
    """A detector in scikit-learn's style whose samples are a `Material`.

    A subclass says how it chooses (`_choose`), learns (`_learn`) and scores
    (`decision_function`). Choosing and calibrating see the training material alone.
    """

    name: str = ""
    learns: bool = True  # False: the score is the same whatever it was fitted on
    text_only: bool = False  # a control that never looks into the model
    reads_tokens: bool = False  # needs the log-probability of every answer token
    single: bool = False  # a baseline that others are to beat out of domain too
    extra_passes: float = 0.0  # forward passes beside those that wrote the answer
    saved: tuple[str, ...] = ()  # fitted arrays and numbers of one that is deployed
    samples_: int = 0  # answers that it draws to each question that it scores
    temperature_: float = 1.0  # of these
    short_name: str = ""  # under which it was fitted
    calibration_: Platt | Isotonic
    inner_auroc_: float  # on held-out training answers
    inner_scores_: np.ndarray  # [question], of the training answers, held out

    def lacks(self, material: Material) -> str:
        """What the detector needs and the material has not; empty where nothing is missing."""
        return ""

    def fit(self, material: Material, y: None = None) -> Method:
        """Choose, calibrate and train the detector on the material."""
        if reason := self.lacks(material):
            raise UserError(f"The detector '{self.name}' cannot be used here: {reason}.")
        self._choose(material)
        self.inner_scores_ = self._inner_scores(material)
        self.inner_auroc_ = auroc(material.z, self.inner_scores_)
        self.calibration_ = Platt.fit(self.inner_scores_, material.z)
        self._learn(material)
        return self

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]; higher means more likely wrong."""
        raise NotImplementedError

    def layers(self) -> tuple[int, ...]:
        """The layers (from 1) whose clean states a fitted detector reads."""
        return ()

    def cost(self, material: Material) -> tuple[float, float]:
        """The extra passes of an answer of the material, and the milliseconds known of them."""
        return self.extra_passes, 0.0

    def chosen(self) -> str:
        """What the training answers chose, in words: "layer 17, C 3.0"."""
        return ""

    def arrays(self) -> dict[str, np.ndarray]:
        """What makes up a fitted detector, ready for safetensors."""
        return {name.rstrip("_"): np.asarray(getattr(self, name)) for name in self.saved}

    def restore(self, arrays: dict[str, np.ndarray]) -> Method:
        """Restore a fitted detector from `arrays`."""
        for name in self.saved:
            array = arrays[name.rstrip("_")]
            setattr(self, name, array if array.ndim else array.item())
        return self

    def _choose(self, material: Material) -> None:
        """Choose layer, strength, β on the training material."""

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
