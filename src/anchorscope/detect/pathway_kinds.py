"""Mixture-of-Probes and Pathway Reweighting, for the published claims that they beat the probe.

Our reconstructions from the paper's text. They read the layer of the single probe. They are
compared and never deployed, so the code favours clarity over speed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.special import expit, logit

from anchorscope.detect.material import Material
from anchorscope.detect.method import (
    STRENGTHS,
    Method,
    choose,
    inner_logits,
    pathway_groups,
    whole_probe,
)
from anchorscope.engine.interventions import reweighted_name
from anchorscope.probes.folds import MIN_PER_CLASS
from anchorscope.probes.linear_probe import LinearProbe
from anchorscope.stats.ranking import auroc

_EDGE = 1e-12  # keeps the mixture's logit finite
Line = tuple[np.ndarray, float]  # coefficients [width] and intercept of a linear classifier


class _ByPathway(Method):
    """Base class of detectors with a gate for the pathway, at the single probe's layer."""

    reweighted: bool = False  # whether it chooses a β
    beta_: float = 0.0

    def lacks(self, material: Material) -> str:
        return "" if material.has("knockout") else "there are no knocked-out states"

    def chosen(self) -> str:
        return f"layer {self.layer_}, C {self.C_}"

    def _choose(self, material: Material) -> None:
        self.layer_, self.C_ = choose(material)
        # Ties go to the first value: no β, and the probe's own strength.
        self._choose_value("beta_", (0.0, *(betas(material) if self.reweighted else ())), material)
        self._choose_value("C_", (self.C_, *STRENGTHS), material)

    def _choose_value(self, attribute: str, values: Sequence[float], material: Material) -> None:
        """Set the attribute to the value with the highest inner AUROC."""

        def inner_auroc(value: float) -> float:
            one = copy.copy(self)
            setattr(one, attribute, value)
            key = (self.name, one.beta_, one.C_)
            return auroc(material.z, material.once(key, lambda: one._inner_scores(material)))

        setattr(self, attribute, max(values, key=inner_auroc))


class MixtureOfProbes(_ByPathway):
    """P(z = 1) = g · P_Q + (1 − g) · P_A: an expert for each pathway, g = P(Q) from the state.

    Experts do not weight the classes, so that they learn how often their pathway is wrong.
    """

    name = "MoP"

    def decision_function(self, material: Material) -> np.ndarray:
        """The mixture's logit of each answer, [question]."""
        x = material.layer("clean", self.layer_)
        gate, a, q = (expit(linear(x, *line)) for line in (self.gate_, *self.experts_))
        return logit(np.clip(gate * q + (1 - gate) * a, _EDGE, 1 - _EDGE))

    def _learn(self, material: Material) -> None:
        x, z = material.layer("clean", self.layer_), material.z
        groups = pathway_groups(material, self.layer_, C=self.C_)
        self.gate_ = _gate(x, groups, self.C_)
        self.experts_ = [_expert(x, z, groups == which, self.C_) for which in (0.0, 1.0)]


class PathwayReweighting(_ByPathway):
    """A probe on states whose attention from E_Q to E_A was moved by +β for Q and −β for A.

    The states "reweight+1.0" are those of β = 1. At β = 0 it is the single probe.
    """

    name = "PR"
    reweighted = True
    extra_passes = 1.0

    def lacks(self, material: Material) -> str:
        if not betas(material):
            return "there are no states of 'reweight+β' and 'reweight-β'"
        return super().lacks(material)

    def decision_function(self, material: Material) -> np.ndarray:
        """The probe's logit of each answer on its reweighted state, [question]."""
        return linear(self._reweighted(material, self.predicts_q(material)), *self.probe_)

    def predicts_q(self, material: Material) -> np.ndarray:
        """Whether the gate predicts Q from each answer's clean state, bool [question]."""
        return linear(material.layer("clean", self.layer_), *self.gate_) > 0

    def chosen(self) -> str:
        return f"{super().chosen()}, beta {self.beta_}"

    def _learn(self, material: Material) -> None:
        x = material.layer("clean", self.layer_)
        groups = pathway_groups(material, self.layer_, C=self.C_)
        self.gate_ = _gate(x, groups, self.C_)
        if not self.beta_:
            self.probe_ = whole_probe(material, self.layer_, C=self.C_)
            return
        is_q = np.zeros(len(material), dtype=bool)  # by held-out gates
        for fold in np.unique(material.inner):
            held = material.inner == fold
            is_q[held] = linear(x[held], *_gate(x[~held], groups[~held], self.C_)) > 0
        self.probe_ = _line(self._reweighted(material, is_q), material.z, self.C_, "weights")

    def _inner_scores(self, material: Material) -> np.ndarray:
        if not self.beta_:
            return inner_logits(material, self.layer_, C=self.C_)["clean"]
        return super()._inner_scores(material)

    def _reweighted(self, material: Material, is_q: np.ndarray) -> np.ndarray:
        """The state of each answer under its own sign of β, [question, width]."""
        if not self.beta_:
            return material.layer("clean", self.layer_)
        plus, minus = (
            material.layer(reweighted_name(beta), self.layer_) for beta in (self.beta_, -self.beta_)
        )
        return np.where(is_q[:, None], plus, minus)


def linear(x: np.ndarray, coef: np.ndarray, intercept: float) -> np.ndarray:
    """State · coef + intercept in double precision, [question]."""
    return x.astype(np.float64) @ coef.astype(np.float64) + intercept


def betas(material: Material) -> tuple[float, ...]:
    """The β above 0 whose states are stored with both signs, in rising order."""
    matches = [re.fullmatch(r"reweight([+-][0-9.]+)", name) for name in material.bank.names]
    values = {float(match[1]) for match in matches if match}
    return tuple(sorted(beta for beta in values if beta > 0 and -beta in values))


def _line(x: np.ndarray, z: np.ndarray, C: float, balance: Literal["none", "weights"]) -> Line:
    probe = LinearProbe(C=C, balance=balance).fit(x, z)
    return probe.coef_[0], float(probe.intercept_[0])


def _gate(x: np.ndarray, groups: np.ndarray, C: float) -> Line:
    """Fit the pathway classifier on the answers that have a pathway; constant for one group."""
    placed = np.isfinite(groups)
    share = float(np.clip(np.mean(groups[placed]), 1e-6, 1 - 1e-6)) if placed.any() else 0.5
    if len(np.unique(groups[placed])) < 2:
        return np.zeros(x.shape[1]), float(logit(share))
    return _line(x[placed], groups[placed], C, "none")


def _expert(x: np.ndarray, z: np.ndarray, own: np.ndarray, C: float) -> Line:
    """Fit a probe on one pathway's answers, or on all if a class has too few."""
    few = min(np.sum(z[own] == which) for which in (0, 1)) < MIN_PER_CLASS
    rows = np.ones(len(z), dtype=bool) if few else own
    return _line(x[rows], z[rows], C, "none")
