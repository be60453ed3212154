"""Pathway Reweighting: the flow from E_Q to E_A strengthened for Q, weakened for A, then read.

The states come from passes with attention scores moved by +β or −β on those edges; the states of
an intervention "reweight+1.0" are those of β = 1. "rescale+1.0" multiplies the attention weights
by the exponential of β after the softmax instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from anchorscope.detect.inner_probes import (
    best_layers,
    choose,
    pathway_groups,
    strengths_from,
)
from anchorscope.detect.kinds.probes import linear
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method, Needs
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.passes import reweighting, state_name
from anchorscope.probes.linear_probe import LinearProbe

Kind = Literal["reweight", "rescale"]
Sign = Literal["pathway", "fixed"]


def betas(material: Material, kind: str) -> tuple[float, ...]:
    """The β above 0 whose states are there with both signs, in rising order."""
    matches = [re.fullmatch(rf"{kind}([+-][0-9.]+)", name) for name in material.bank.names]
    values = {float(match[1]) for match in matches if match}
    return tuple(sorted(beta for beta in values if beta > 0 and -beta in values))


class PathwayReweighting(Method):
    """A probe on states reweighted by the predicted pathway, +β for Q and −β for A.

    `sign` "fixed" is the ablation: the same signed β for everybody. β (0 too), layer and strength
    are chosen on held-out training answers, one after the other.
    """

    extra_passes = 1.0

    def __init__(self, *, kind: Kind = "reweight", sign: Sign = "pathway"):
        self.kind = kind
        self.sign = sign

    @property
    def name(self) -> str:  # type: ignore[override]
        base = "PR" if self.kind == "reweight" else "PR, activation scaled"
        return base if self.sign == "pathway" else f"{base}, fixed β"

    def lacks(self, material: Material) -> str:
        if not betas(material, self.kind):
            return f"there are no states of '{self.kind}+β' and '{self.kind}-β'"
        return "" if material.has("knockout") else "there are no knocked-out states"

    def decision_function(self, material: Material) -> np.ndarray:
        """The probe's logit of each answer on its reweighted state, [question]."""
        x = self._picked(material, self.predicts_q(material))
        return linear(x, self.coef_, self.intercept_)

    def predicts_q(self, material: Material) -> np.ndarray:
        """Whether each answer is taken for Q, from its clean state, bool [question]."""
        if self.sign == "fixed":
            return np.ones(len(material), dtype=bool)
        return linear(material.layer("clean", self.layer_), self.gate_, self.gate_bias_) > 0

    def needs(self) -> Needs:
        read = [(self.kind, self.beta_)] if self.beta_ else []
        read += [(self.kind, -self.beta_)] if self.beta_ and self.sign == "pathway" else []
        return {"clean": (self.layer_,), **{state_name(*one): (self.layer_,) for one in read}}

    def passes(self, material: Material) -> Sequence[Intervention]:
        """Each answer's own sign of β, from its clean state; none where β is 0."""
        if not self.beta_:
            return ()
        signs = np.where(self.predicts_q(material), 1.0, -1.0)
        return [reweighting(self.kind, float(sign * self.beta_)) for sign in signs]

    def tensors(self) -> dict[str, np.ndarray]:
        return {"coef": self.coef_, "intercept": np.array([self.intercept_]),
                "gate": self.gate_, "gate_bias": np.array([self.gate_bias_])}  # fmt: skip

    def about(self) -> dict[str, Any]:
        return {"layer": self.layer_, "C": self.C_, "beta": self.beta_}

    def restore(self, tensors: dict[str, np.ndarray], about: dict[str, Any]) -> Method:
        self.layer_, self.C_ = int(about["layer"]), float(about["C"])
        self.beta_ = float(about["beta"])
        self.coef_, self.intercept_ = tensors["coef"], float(tensors["intercept"][0])
        self.gate_, self.gate_bias_ = tensors["gate"], float(tensors["gate_bias"][0])
        return self

    def _choose(self, material: Material) -> None:
        self.layer_, self.C_, _ = choose(material)
        steps = betas(material, self.kind)
        tried = steps if self.sign == "pathway" else (*steps, *(-beta for beta in steps))
        self._choose_value("beta_", (0.0, *tried), material)  # at 0 it is the single probe
        self._choose_value("layer_", best_layers(material), material)
        self._choose_value("C_", strengths_from(self.C_), material)

    def _learn(self, material: Material) -> None:
        clean = material.layer("clean", self.layer_)
        groups = pathway_groups(material, self.layer_, C=self.C_)
        is_q = np.ones(len(material), dtype=bool)
        self.gate_, self.gate_bias_ = np.zeros(clean.shape[1], np.float32), 1.0
        if self.sign == "pathway":
            is_q = self._learn_gate(material, clean, groups)
        probe = LinearProbe(C=self.C_).fit(self._picked(material, is_q), material.z)
        self.coef_, self.intercept_ = probe.coef_[0], float(probe.intercept_[0])

    def _learn_gate(self, material: Material, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Trains the gate; what gates that did not see a question take it for, bool [question]."""
        placed = np.isfinite(groups)
        share = float(groups[placed].mean())
        if share in (0.0, 1.0):
            self.gate_bias_ = 1.0 if share else -1.0
            return np.full(len(material), bool(share))
        gate = LinearProbe(C=self.C_, balance="none").fit(x[placed], groups[placed])
        self.gate_, self.gate_bias_ = gate.coef_[0], float(gate.intercept_[0])
        is_q = np.zeros(len(material), dtype=bool)
        for held in (material.inner == fold for fold in np.unique(material.inner)):
            rest = placed & ~held
            if len(np.unique(groups[rest])) < 2:
                is_q[held] = bool(groups[rest][0])
                continue
            part = LinearProbe(C=self.C_, balance="none").fit(x[rest], groups[rest])
            is_q[held] = part.decision_function(x[held]) > 0
        return is_q

    def _picked(self, material: Material, is_q: np.ndarray) -> np.ndarray:
        """The state of each answer under its own sign of β, [question, width]."""
        if not self.beta_:
            return material.layer("clean", self.layer_)
        plus = material.layer(state_name(self.kind, self.beta_), self.layer_)
        if self.sign == "fixed":
            return plus
        minus = material.layer(state_name(self.kind, -self.beta_), self.layer_)
        return np.where(is_q[:, None], plus, minus)
