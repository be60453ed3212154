"""A network with as many weights as the Mixture-of-Probes: is it the pathways, or the size?"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from anchorscope.detect.material import Material
from anchorscope.detect.method import Method, Needs
from anchorscope.detect.reading import choose

HIDDEN = 3  # two experts and a gate have three vectors of weights; so has this layer
PENALTIES = (1.0, 10.0, 100.0)


class Mlp(Method):
    """One hidden layer of three units on the clean state of the probe's layer."""

    name = "MLP of equal capacity"

    def __init__(self, *, seed: int = 0):
        self.seed = seed

    def decision_function(self, material: Material) -> np.ndarray:
        """The logit of each answer, [question]."""
        x = (material.layer("clean", self.layer_) - self.mean_) / self.scale_
        hidden = np.tanh(x.astype(np.float64) @ self.inner_ + self.inner_bias_)
        return hidden @ self.outer_ + self.outer_bias_[0]

    def needs(self) -> Needs:
        return {"clean": (self.layer_,)}

    def tensors(self) -> dict[str, np.ndarray]:
        names = ("mean", "scale", "inner", "inner_bias", "outer", "outer_bias")
        return {name: np.ascontiguousarray(getattr(self, f"{name}_")) for name in names}

    def about(self) -> dict[str, Any]:
        return {"layer": self.layer_, "alpha": self.alpha_}

    def restore(self, tensors: dict[str, np.ndarray], about: dict[str, Any]) -> Method:
        self.layer_, self.alpha_ = int(about["layer"]), float(about["alpha"])
        for name, value in tensors.items():
            setattr(self, f"{name}_", value)
        return self

    def _choose(self, material: Material) -> None:
        self.layer_ = choose(material).layer
        self._choose_value("alpha_", PENALTIES, material)

    def _learn(self, material: Material) -> None:
        x = material.layer("clean", self.layer_).astype(np.float64)
        self.mean_, self.scale_ = x.mean(axis=0), x.std(axis=0)
        self.scale_[self.scale_ == 0] = 1.0
        solver = MLPClassifier(
            hidden_layer_sizes=(HIDDEN,),
            activation="tanh",
            solver="lbfgs",
            alpha=self.alpha_,
            max_iter=200,
            random_state=self.seed,
        )
        with warnings.catch_warnings():
            # Stopped early is stopped well here: the penalty is what keeps it from overfitting.
            warnings.simplefilter("ignore", ConvergenceWarning)
            solver.fit((x - self.mean_) / self.scale_, material.z)
        self.inner_, outer = solver.coefs_
        self.inner_bias_, self.outer_bias_ = solver.intercepts_
        self.outer_ = outer[:, 0]
