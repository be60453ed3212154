"""Linear probes as detectors: at the answer, at the last question token, and a mean of several."""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorscope.detect.inner_probes import (
    choose,
    inner_logits,
    layer_scores,
    whole_probe,
)
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method


class SingleProbe(Method):
    """One linear probe; layer and strength are chosen on held-out training answers."""

    name = "probe"
    single = True
    states = "clean"

    def lacks(self, material: Material) -> str:
        return "" if material.has(self.states) else f"there are no states of '{self.states}'"

    def decision_function(self, material: Material) -> np.ndarray:
        """The probe's logit of each answer, [question]."""
        return linear(material.layer(self.states, self.layer_), self.coef_, self.intercept_)

    def layers(self) -> tuple[int, ...]:
        return (self.layer_,)

    def tensors(self) -> dict[str, np.ndarray]:
        return {"coef": self.coef_, "intercept": np.array([self.intercept_])}

    def about(self) -> dict[str, Any]:
        return {"layer": self.layer_, "C": self.C_}

    def restore(self, tensors: dict[str, np.ndarray], about: dict[str, Any]) -> Method:
        self.layer_, self.C_ = int(about["layer"]), float(about["C"])
        self.coef_, self.intercept_ = tensors["coef"], float(tensors["intercept"][0])
        return self

    def _choose(self, material: Material) -> None:
        self.layer_, self.C_, _ = choose(material, states=self.states)

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


def linear(x: np.ndarray, coef: np.ndarray, intercept: float) -> np.ndarray:
    """State · coef + intercept in double precision, [question]."""
    return x.astype(np.float64) @ coef.astype(np.float64) + intercept


class Ensemble(Method):
    """The mean logit of `size` probes, at the layers of highest inner AUROC.

    No detector by itself: `Combined` weighs it beside token probability.
    """

    name = "ensemble of probes"

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

    def layers(self) -> tuple[int, ...]:
        return self.layers_

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
        logits = [inner_logits(material, layer, C=self.C_)["clean"] for layer in self.layers_]
        return np.mean(logits, axis=0)
