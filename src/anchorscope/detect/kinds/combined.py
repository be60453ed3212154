"""Probes and token probability together: what the states say, and how sure the model was.

Both come with the pass that reads the answer. The probes know more where they were trained, token
probability holds on other questions too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from anchorscope.detect.kinds.probes import Ensemble
from anchorscope.detect.kinds.token_scores import TokenLogProb
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method

_TOKENS = TokenLogProb(reduce="min", entity=True)
_RANGE = (0.01, 0.99)  # quantiles of the training answers
_RIDGE = 1e-3  # against the mean of the losses; keeps classes that part altogether finite


class Combined(Method):
    """Logistic regression on the probes' held-out logit and minus E_A's lowest log-probability.

    The latter is kept within the range that training saw. Of several datasets a whole one is held
    out at a time when layers and weights are chosen: the probes get the weight that they deserve on
    questions unlike those they learnt from.
    """

    name = "combined"
    reads_tokens = True

    def lacks(self, material: Material) -> str:
        return "" if material.has("clean") else "there are no states of 'clean'"

    def decision_function(self, material: Material) -> np.ndarray:
        """The log-odds of each answer, [question]."""
        columns = self._columns(self.base_.decision_function(material), material)
        return columns @ self.weights_[:-1] + self.weights_[-1]

    def layers(self) -> tuple[int, ...]:
        return self.base_.layers()

    def tensors(self) -> dict[str, np.ndarray]:
        return self.base_.tensors() | {"weights": self.weights_, "range": self.range_}

    def about(self) -> dict[str, Any]:
        return self.base_.about()

    def restore(self, tensors: dict[str, np.ndarray], about: dict[str, Any]) -> Method:
        self.base_ = Ensemble()
        self.base_.restore(tensors, about)
        self.weights_, self.range_ = tensors["weights"], tensors["range"]
        return self

    def _choose(self, material: Material) -> None:
        apart = material.apart()
        self.base_ = Ensemble()
        self.base_._choose(apart)
        self.range_ = np.quantile(_TOKENS.decision_function(material), _RANGE)
        self._held_out = self._inner_columns(apart)
        self.weights_ = fit_weights(self._held_out, material.z)

    def _learn(self, material: Material) -> None:
        self.base_._learn(material)
        self.__dict__.pop("_held_out", None)  # a fitted detector travels without it

    def _inner_scores(self, material: Material) -> np.ndarray:
        # On the folds of every other detector, so that `auto` compares like with like. A fold's
        # weights come from the other folds, put on one scale: their ratio is what was learnt.
        columns = self._inner_columns(material)
        from_middle, spread = columns - columns.mean(axis=0), columns.std(axis=0)
        scores = np.zeros(len(material))
        for fold in np.unique(material.inner):
            held = material.inner == fold
            weights = fit_weights(self._held_out[~held], material.z[~held])[:-1]
            if size := float(np.linalg.norm(weights * spread)):
                scores[held] = from_middle[held] @ weights / size
        size = float(np.linalg.norm(self.weights_[:-1] * spread))
        return size * scores + columns.mean(axis=0) @ self.weights_[:-1] + self.weights_[-1]

    def _inner_columns(self, material: Material) -> np.ndarray:
        """Both scores of the training answers [question, 2], the logit held out."""
        return self._columns(self.base_._inner_scores(material), material)

    def _columns(self, logit: np.ndarray, material: Material) -> np.ndarray:
        """The logit and minus E_A's lowest log-probability within its range, [question, 2]."""
        return np.column_stack([logit, _TOKENS.decision_function(material).clip(*self.range_)])


def fit_weights(scores: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The weight of each column of scores [question, column], and the intercept; none below 0.

    Higher scores mean more likely wrong, so a weight below 0 would be luck; scikit-learn's
    LogisticRegression cannot rule it out.
    """
    mean, spread = scores.mean(axis=0), scores.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    x = np.column_stack([(scores - mean) / spread, np.ones(len(z))])

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        logit = x @ w
        penalty = _RIDGE * np.append(w[:-1], 0.0)
        value = np.mean(np.logaddexp(0, logit) - z * logit) + penalty @ w / 2
        return float(value), x.T @ (expit(logit) - z) / len(z) + penalty

    bounds = [(0, None)] * scores.shape[1] + [(None, None)]
    found = minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", bounds=bounds)
    weights = found.x[:-1] / spread
    return np.append(weights, found.x[-1] - weights @ mean)
