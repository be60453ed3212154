"""`auto`: the deployable detector with the highest AUROC on held-out training answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import norm

from anchorscope.detect.material import Material
from anchorscope.detect.method import Method
from anchorscope.errors import UserError
from anchorscope.stats.ranking import auroc_draws

_RESAMPLES = 200
_DOUBT = 0.05  # that one of many equals is taken for better


class Auto(Method):
    """The candidate of highest AUROC on held-out training answers; never by a test answer.

    Candidates come in the order of preference. The first one is taken that the best is not ahead
    of by more than the luckiest of as many equals would be, in 19 of 20 cases (Bonferroni).
    """

    name = "auto"

    def __init__(self, *, candidates: Sequence[Method] = (), seed: int = 0):
        self.candidates = candidates
        self.seed = seed

    def fit(self, material: Material, y: None = None) -> Auto:
        """The detector itself; `best_` is the candidate that was chosen, fitted."""
        usable = [one for one in self.candidates if not one.lacks(material)]
        return self.take([one.fit(material) for one in usable], material.z)

    def take(self, fitted: Sequence[Method], z: np.ndarray) -> Auto:
        """The detector itself, chosen among detectors fitted on the same answers of classes z."""
        if not fitted:
            raise UserError("There is no detector to choose from on this material.")
        top = max(fitted, key=lambda one: one.inner_auroc_)
        margin = float(norm.isf(_DOUBT / max(1, len(fitted) - 1)))  # standard errors
        self.best_ = next(one for one in fitted if self._within(margin, one, top, z))
        for name in ("calibration_", "inner_auroc_", "inner_scores_"):
            setattr(self, name, getattr(self.best_, name))
        return self

    def _within(self, margin: float, one: Method, top: Method, z: np.ndarray) -> bool:
        """Whether `top` is ahead by no more standard errors of the paired difference."""
        scores = [top.inner_scores_, one.inner_scores_]
        draws = auroc_draws(z, scores, seed=self.seed, resamples=_RESAMPLES)
        return bool(top.inner_auroc_ - one.inner_auroc_ <= margin * np.std(draws[0] - draws[1]))

    def decision_function(self, material: Material) -> np.ndarray:
        """The chosen detector's score, [question]."""
        return self.best_.decision_function(material)
