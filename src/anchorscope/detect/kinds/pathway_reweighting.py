"""Pathway Reweighting: the flow from E_Q to E_A strengthened for Q, weakened for A, then read.

The states come from passes with attention scores moved by +β or −β on those edges; the states of
an intervention "reweight+1.0" are those of β = 1. "rescale+1.0" multiplies the attention weights
by the exponential of β after the softmax instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

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
from anchorscope.probes.fold_probes import fit_fold_probes
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
        gate = _ALL_Q
        if self.sign == "pathway":
            key = ("gate", self.layer_, self.C_)  # whatever β is
            gate = material.once(key, lambda: learn_gate(material, self.layer_, C=self.C_))
        width = material.layer("clean", self.layer_).shape[1]
        self.gate_ = np.zeros(width, np.float32) if gate.coef is None else gate.coef
        self.gate_bias_ = gate.bias
        is_q = np.broadcast_to(gate.is_q, len(material))
        probe = LinearProbe(C=self.C_).fit(self._picked(material, is_q), material.z)
        self.coef_, self.intercept_ = probe.coef_[0], float(probe.intercept_[0])

    def _picked(self, material: Material, is_q: np.ndarray) -> np.ndarray:
        """The state of each answer under its own sign of β, [question, width]."""
        if not self.beta_:
            return material.layer("clean", self.layer_)
        plus = material.layer(state_name(self.kind, self.beta_), self.layer_)
        if self.sign == "fixed":
            return plus
        minus = material.layer(state_name(self.kind, -self.beta_), self.layer_)
        return np.where(is_q[:, None], plus, minus)


class Gate(NamedTuple):
    """A probe for Q on the clean state, and what gates that did not see an answer take it for."""

    coef: np.ndarray | None  # [width]; None: all answers are on one pathway
    bias: float
    is_q: np.ndarray  # bool [question], or one for all


_ALL_Q = Gate(None, 1.0, np.array(True))


def learn_gate(material: Material, layer: int, *, C: float) -> Gate:
    """The gate of this layer and strength, from the training material alone."""
    groups = pathway_groups(material, layer, C=C)
    placed = np.isfinite(groups)
    share = float(groups[placed].mean())
    if share in (0.0, 1.0):
        return Gate(None, 1.0 if share else -1.0, np.array(bool(share)))
    x = material.layer("clean", layer)
    gate = LinearProbe(C=C, balance="none").fit(x[placed], groups[placed])
    others = fit_fold_probes(x[placed], groups[placed], material.inner[placed], C=C, balance="none")
    logits = replace(others, fold=material.inner).logits(x)
    is_q = logits > 0
    for fold in np.unique(material.inner[np.isnan(logits)]):
        # All other folds are on one pathway.
        is_q[material.inner == fold] = bool(groups[placed & (material.inner != fold)][0])
    return Gate(gate.coef_[0], float(gate.intercept_[0]), is_q)
