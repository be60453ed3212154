"""Single probes: at the probe position, and at the last question token."""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorscope.detect.material import Material
from anchorscope.detect.method import Method, Needs
from anchorscope.detect.reading import Choice, choose, inner_logits
from anchorscope.probes.probe import LinearProbe


class SingleProbe(Method):
    """One linear probe; layer and strength are chosen on held-out training answers."""

    name = "probe"
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
        x = material.layer(self.states, self.layer_)
        probe = LinearProbe(C=self.C_).fit(x, material.z)
        self.coef_, self.intercept_ = probe.coef_[0], float(probe.intercept_[0])

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
