"""An ensemble of probes: the mean logit over the layers that read best."""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorscope.detect.material import Material
from anchorscope.detect.method import Method, Needs
from anchorscope.detect.probe import linear
from anchorscope.detect.reading import choose, inner_logits, layer_scores
from anchorscope.probes.probe import LinearProbe


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
        found = layer_scores(material)
        best = sorted(found, key=lambda layer: -found[layer])[: self.size]
        self.layers_, self.C_ = tuple(sorted(best)), choose(material).C

    def _learn(self, material: Material) -> None:
        probes = [
            LinearProbe(C=self.C_).fit(material.layer("clean", layer), material.z)
            for layer in self.layers_
        ]
        self.coef_ = np.stack([probe.coef_[0] for probe in probes])  # [layer, width]
        self.intercept_ = np.array([probe.intercept_[0] for probe in probes])

    def _inner_scores(self, material: Material) -> np.ndarray:
        of = [inner_logits(material, layer, C=self.C_)["clean"] for layer in self.layers_]
        return np.mean(of, axis=0)
