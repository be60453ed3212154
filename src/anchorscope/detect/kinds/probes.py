"""Probes as detectors: a single one, one at the question, an ensemble, an MLP of equal capacity."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from anchorscope.detect.inner_probes import (
    Choice,
    choose,
    inner_logits,
    layer_scores,
    whole_probe,
)
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method, Needs

HIDDEN = 3  # two experts and a gate have three vectors of weights; so has this layer
PENALTIES = (1.0, 10.0, 100.0)


class SingleProbe(Method):
    """One linear probe; layer and strength are chosen on held-out training answers."""

    name = "probe"
    single = True
    steady = True
    states = "clean"

    def lacks(self, material: Material) -> str:
        return "" if material.has(self.states) else f"there are no states of '{self.states}'"

    def decision_function(self, material: Material) -> np.ndarray:
        """The probe's logit of each answer, [question]."""
        return linear(material.layer(self.states, self.layer_), self.coef_, self.intercept_)

    def needs(self) -> Needs:
        return {self.states: (self.layer_,)}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"coef": self.coef_, "intercept": np.array([self.intercept_])}

    def about(self) -> dict[str, Any]:
        return {"layer": self.layer_, "C": self.C_}

    def restore(self, tensors: dict[str, np.ndarray], about: dict[str, Any]) -> Method:
        self.layer_, self.C_ = int(about["layer"]), float(about["C"])
        self.coef_, self.intercept_ = tensors["coef"], float(tensors["intercept"][0])
        return self

    def _choose(self, material: Material) -> None:
        self.layer_, self.C_, _ = self._choice(material)

    def _choice(self, material: Material) -> Choice:
        return choose(material, states=self.states)

    def _learn(self, material: Material) -> None:
        found = whole_probe(material, self.layer_, C=self.C_, states=self.states)
        self.coef_, self.intercept_ = found

    def _inner_scores(self, material: Material) -> np.ndarray:
        # The very logits that the choice was made on: nothing is trained again.
        return inner_logits(material, self.layer_, C=self.C_, states=self.states)["clean"]


class QuestionOnly(SingleProbe):
    """A probe at the last question token: what can be known before the answer is written."""

    name = "question-only probe"
    states = "question-only"
    steady = False
    deployable = False


def linear(x: np.ndarray, coef: np.ndarray, intercept: float) -> np.ndarray:
    """State · coef + intercept in double precision, [question]."""
    return x.astype(np.float64) @ coef.astype(np.float64) + intercept


class Ensemble(Method):
    """The mean logit of `size` probes, at the layers of highest inner AUROC."""

    name = "ensemble of probes"
    steady = True

    def __init__(self, *, size: int = 5):
        self.size = size

    def decision_function(self, material: Material) -> np.ndarray:
        """The mean logit of each answer, [question]."""
        logits = [
            linear(material.layer("clean", layer), coef, float(intercept))
            for layer, coef, intercept in zip(
                self.layers_, self.coef_, self.intercept_, strict=True
            )
        ]
        return np.mean(logits, axis=0)

    def needs(self) -> Needs:
        return {"clean": self.layers_}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"coef": self.coef_, "intercept": self.intercept_}

    def about(self) -> dict[str, Any]:
        return {"layers": list(self.layers_), "C": self.C_}

    def restore(self, tensors: dict[str, np.ndarray], about: dict[str, Any]) -> Method:
        self.layers_, self.C_ = tuple(about["layers"]), float(about["C"])
        self.coef_, self.intercept_ = tensors["coef"], tensors["intercept"]
        return self

    def _choose(self, material: Material) -> None:
        scores = layer_scores(material)
        best = sorted(scores, key=lambda layer: -scores[layer])[: self.size]
        self.layers_, self.C_ = tuple(sorted(best)), choose(material).C

    def _learn(self, material: Material) -> None:
        probes = [whole_probe(material, layer, C=self.C_) for layer in self.layers_]
        self.coef_ = np.stack([coef for coef, _ in probes])  # [layer, width]
        self.intercept_ = np.array([intercept for _, intercept in probes])

    def _inner_scores(self, material: Material) -> np.ndarray:
        of = [inner_logits(material, layer, C=self.C_)["clean"] for layer in self.layers_]
        return np.mean(of, axis=0)


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
        scaler = StandardScaler().fit(x)
        self.mean_, self.scale_ = (np.asarray(of) for of in (scaler.mean_, scaler.scale_))
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
            solver.fit(scaler.transform(x), material.z)
        self.inner_, outer = solver.coefs_
        self.inner_bias_, self.outer_bias_ = solver.intercepts_
        self.outer_ = outer[:, 0]
