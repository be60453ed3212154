"""Mixture-of-Probes, and the ablations that say what its gain is due to."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from anchorscope.detect.groups import pathway_groups
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method, Needs
from anchorscope.detect.mixture import Mixture, random_gate
from anchorscope.detect.probe import linear
from anchorscope.detect.reading import choose
from anchorscope.pathways.effects import flips
from anchorscope.probes.probe import LinearProbe

Gate = Literal["learned", "random", "oracle"]
By = Literal["pathway", "cluster"]
_NAMES = {
    ("learned", "pathway"): "MoP",
    ("random", "pathway"): "MoP, random gate",
    ("oracle", "pathway"): "MoP, oracle gate",
    ("learned", "cluster"): "MoP, no pathway labels",
}


class MixtureOfProbes(Method):
    """One expert per pathway and a gate on the clean state, at the probe's layer.

    `gate`: learned; random (a control); oracle (the pathway itself, which needs a knockout at
    test time: an upper bound, not a detector). `experts`: by pathway, or by clusters of states.
    """

    def __init__(self, *, gate: Gate = "learned", experts: By = "pathway", seed: int = 0):
        self.gate = gate
        self.experts = experts
        self.seed = seed

    @property
    def name(self) -> str:  # type: ignore[override]
        return _NAMES[self.gate, self.experts]

    @property
    def deployable(self) -> bool:  # type: ignore[override]
        return self.gate == "learned"

    @property
    def extra_passes(self) -> float:  # type: ignore[override]
        return 1.0 if self.gate == "oracle" else 0.0

    def lacks(self, material: Material) -> str:
        needed = self.experts == "pathway" or self.gate == "oracle"
        return "" if material.has("knockout") or not needed else "there are no knocked-out states"

    def decision_function(self, material: Material) -> np.ndarray:
        """The mixture's logit of each answer, [question]."""
        x = material.layer("clean", self.layer_)
        return self.mixture_.decision_function(x, self._given_gate(material, x))

    def needs(self) -> Needs:
        return {"clean": (self.layer_,)}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"coef": self.mixture_.coef_, "intercept": self.mixture_.intercept_}

    def about(self) -> dict[str, Any]:
        return {"layer": self.layer_, "C": self.C_, "own_expert": self.mixture_.own_.tolist()}

    def restore(self, tensors: dict[str, np.ndarray], about: dict[str, Any]) -> Method:
        self.layer_, self.C_ = int(about["layer"]), float(about["C"])
        made = Mixture(C=self.C_, seed=self.seed)
        made.coef_, made.intercept_ = tensors["coef"], tensors["intercept"]
        made.own_, made.classes_ = np.array(about["own_expert"]), np.array([0, 1])
        made.n_features_in_ = made.coef_.shape[1]
        self.mixture_ = made
        return self

    def _choose(self, material: Material) -> None:
        self.layer_, self.C_, _ = choose(material)

    def _learn(self, material: Material) -> None:
        x = material.layer("clean", self.layer_)
        groups = None
        if self.experts == "pathway":
            groups = pathway_groups(material, self.layer_, C=self.C_)
        self.mixture_ = Mixture(C=self.C_, seed=self.seed).fit(x, material.z, groups=groups)
        if self.gate == "oracle":
            self.reader_ = LinearProbe(C=self.C_).fit(x, material.z)

    def _given_gate(self, material: Material, x: np.ndarray) -> np.ndarray | None:
        if self.gate == "learned":
            return None
        if self.gate == "random":
            return random_gate(material.ids, self.mixture_.share_, seed=self.seed)
        weights, intercept = self.reader_.coef_[0], float(self.reader_.intercept_[0])
        knocked = linear(material.layer("knockout", self.layer_), weights, intercept)
        flipped = flips(linear(x, weights, intercept), knocked)
        return np.where(np.isnan(flipped), self.mixture_.share_, flipped)
