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

    A subclass defines how it chooses (`_choose`), learns (`_learn`) and scores
    (`decision_function`). Choosing and calibrating see the training material alone.
    """

    name: str = ""
    learns: bool = True  # False: the score is the same whatever it was fitted on
    text_only: bool = False  # a control that never looks into the model
    reads_tokens: bool = False  # needs the log-probability of every answer token
    single: bool = False  # a baseline that other detectors are compared with out of domain
    extra_passes: float = 0.0  # forward passes besides those that generated the answer
    saved: tuple[str, ...] = ()  # fitted arrays and numbers that a deployed detector keeps
    samples_: int = 0  # answers that it samples to each question that it scores
    temperature_: float = 1.0  # at which they are sampled
    short_name: str = ""  # its name in `METHODS`
    calibration_: Platt | Isotonic
    inner_auroc_: float  # on held-out training answers
    inner_scores_: np.ndarray  # [question], of the training answers, held out

    def lacks(self, material: Material) -> str:
        """The reason why the detector cannot use the material; empty if it can."""
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
        """The extra forward passes per answer, and their milliseconds (0 if not measured)."""
        return self.extra_passes, 0.0

    def chosen(self) -> str:
        """The hyperparameters chosen on the training answers, as text: "layer 17, C 3.0"."""
        return ""

    def arrays(self) -> dict[str, np.ndarray]:
        """The fitted arrays by name, ready for safetensors."""
        return {name.rstrip("_"): np.asarray(getattr(self, name)) for name in self.saved}

    def restore(self, arrays: dict[str, np.ndarray]) -> Method:
        """Restore a fitted detector from `arrays`."""
        for name in self.saved:
            array = arrays[name.rstrip("_")]
            setattr(self, name, array if array.ndim else array.item())
        return self

    def _choose(self, material: Material) -> None:
        """Choose hyperparameters (layer, C, β) on the training material."""

    def _learn(self, material: Material) -> None:
        """Train on the material with the chosen hyperparameters."""

    def _inner_scores(self, material: Material) -> np.ndarray:
        """Held-out scores of the training answers by inner cross-validation, [question]."""
        if not self.learns:
            return self.decision_function(material)
        scores = np.full(len(material), np.nan)
        for held, rest, out in material.inner_parts():
            part = copy.copy(self)
            part._learn(rest)
            scores[held] = part.decision_function(out)
        return scores
