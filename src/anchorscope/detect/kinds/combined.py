"""Probes and token probability together: what the states say, and how sure the model was.

Both come with the pass that wrote the answer. The probes know more where they were trained, token
probability holds on other questions too.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from anchorscope.detect.distance import Distance, held_out_distances, learn_distance
from anchorscope.detect.inner_probes import choose
from anchorscope.detect.kinds.baselines import FirstEntropy, TokenLogProb
from anchorscope.detect.kinds.probes import Ensemble
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method, Needs
from anchorscope.stats.ranking import auroc

_RIDGE = 1e-3  # against the mean of the losses; keeps classes that part altogether finite


class Combined(Method):
    """Logistic regression on the probes' held-out logit and minus the lowest log-probability.

    Of several datasets a whole one is held out at a time when layers and weights are chosen: the
    probes get the weight that they deserve on questions unlike those they learnt from.

    `shrink` draws the probes' logit towards 0 where a state lies further from the training states
    than 95 % of held-out training answers: what is left there is the log-probability.

    `cautious` holds out a whole topic at a time where there is one dataset, and looks at the sum of
    the log-probabilities and the first token's entropy too.
    """

    reads_tokens = True

    def __init__(self, *, shrink: bool = False, cautious: bool = False):
        self.shrink = shrink
        self.cautious = cautious

    @property
    def name(self) -> str:  # type: ignore[override]
        kinds = {"shrunk": self.shrink, "cautious": self.cautious}
        return ", ".join(["combined", *(kind for kind, is_so in kinds.items() if is_so)])

    @property
    def steady(self) -> bool:  # type: ignore[override]
        return not (self.shrink or self.cautious)

    def lacks(self, material: Material) -> str:
        return "" if material.has("clean") else "there are no states of 'clean'"

    def decision_function(self, material: Material) -> np.ndarray:
        """The log-odds of each answer, [question]."""
        logit = self.base_.decision_function(material)
        if self.shrink:
            far = self.distance_.of(material.layer("clean", self.distance_.layer))
            logit = logit * _kept(far, self.distance_.usual)
        return self._columns(logit, material) @ self.weights_[:-1] + self.weights_[-1]

    def needs(self) -> Needs:
        return self.base_.needs()

    def tensors(self) -> dict[str, np.ndarray]:
        far = self.distance_.tensors() if self.shrink else {}
        own = {f"own.{name}": of for name, of in far.items()}
        return self.base_.tensors() | {"weights": self.weights_} | own

    def about(self) -> dict[str, Any]:
        return self.base_.about()

    def restore(self, tensors: dict[str, np.ndarray], about: dict[str, Any]) -> Method:
        self.base_ = Ensemble()
        self.base_.restore(tensors, about)
        self.weights_ = tensors["weights"]
        if self.shrink:
            own = {n.removeprefix("own."): of for n, of in tensors.items() if n.startswith("own.")}
            self.distance_ = cast(Distance, Distance.restore(own))
        return self

    def _choose(self, material: Material) -> None:
        apart = material.apart(by_topic=self.cautious)
        self.base_ = _best_probes(apart)
        self._layer = choose(apart).layer
        self._held_out = self._inner_columns(apart)
        self.weights_ = fit_weights(self._held_out, material.z)

    def _learn(self, material: Material) -> None:
        self.base_._learn(material)
        if self.shrink:
            self.distance_ = learn_distance(material, layer=self._layer)
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
        """The scores of the training answers [question, score], the logit held out."""
        logit = self.base_._inner_scores(material)
        if self.shrink:
            far = held_out_distances(material, self._layer)
            usual = learn_distance(material, layer=self._layer).usual
            logit = logit * _kept(far, usual)
        return self._columns(logit, material)

    def _columns(self, logit: np.ndarray, material: Material) -> np.ndarray:
        """What is weighed of each answer, [question, score]; higher means more likely wrong."""
        both = two_scores(logit, material)
        if not self.cautious:
            return both
        more = [TokenLogProb(reduce="sum"), FirstEntropy()]
        return np.column_stack([both, *(one.decision_function(material) for one in more)])


def _kept(far: np.ndarray, usual: float) -> np.ndarray:
    """How much of the probes' logit is kept at each distance, [question]: all of it up to `usual`,
    then less by the square.
    """
    return np.minimum(1.0, (usual / np.maximum(far, usual)) ** 2)


def _best_probes(material: Material) -> Ensemble:
    """The mean of several layers or the best one alone, whichever has the higher inner AUROC."""
    tried = [Ensemble(), Ensemble(size=1)]
    for one in tried:
        one._choose(material)
    return max(tried, key=lambda one: auroc(material.z, one._inner_scores(material)))


def two_scores(logit: np.ndarray, material: Material) -> np.ndarray:
    """The probes' logit and minus the lowest log-probability of each answer, [question, 2]."""
    return np.column_stack([logit, TokenLogProb(reduce="min").decision_function(material)])


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
