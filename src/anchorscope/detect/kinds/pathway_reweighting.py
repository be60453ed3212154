"""Pathway Reweighting: the flow from E_Q to E_A strengthened for Q, weakened for A, then read.

The states come from passes with attention scores moved by +β or −β on those edges; the states of
an intervention "reweight+1.0" are those of β = 1. "rescale+1.0" multiplies the attention weights
by the exponential of β after the softmax instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from anchorscope.detect.inner_probes import (
    STRENGTHS,
    Part,
    best_layers,
    choose,
    fit_inner,
    fit_rests,
    pathway_groups,
    rests,
    strengths_from,
    whole_probe,
)
from anchorscope.detect.kinds.probes import linear
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method, Needs
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.passes import reweighting, state_name
from anchorscope.probes.fold_probes import NO_FOLD, FoldTask, fit_fold_tasks, task_logits
from anchorscope.probes.linear_probe import LinearProbe, check_finite
from anchorscope.probes.many_fits import class_weights, fit_many, to_single

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
        self._held_out(material, STRENGTHS)
        self._choose_value("C_", strengths_from(self.C_), material)

    def _learn(self, material: Material) -> None:
        gate = _ALL_Q
        if self.sign == "pathway":
            gate = learn_gate(material, self.layer_, C=self.C_)
        self.gate_, self.gate_bias_ = gate.vector(material, self.layer_), gate.bias
        if states := self._states:
            found = whole_probe(material, self.layer_, C=self.C_, states=states)
            self.coef_, self.intercept_ = found
            return
        is_q = np.broadcast_to(gate.is_q, len(material))
        probe = LinearProbe(C=self.C_).fit(self._picked(material, is_q), material.z)
        self.coef_, self.intercept_ = probe.coef_[0], float(probe.intercept_[0])

    @property
    def _states(self) -> str:
        """The states that all answers are read in; empty where it depends on the answer."""
        if not self.beta_:
            return "clean"
        return state_name(self.kind, self.beta_) if self.sign == "fixed" else ""

    def _inner_scores(self, material: Material) -> np.ndarray:
        return self._held_out(material, (self.C_,))[self.C_]

    def _held_out(self, material: Material, strengths: Sequence[float]) -> dict[float, np.ndarray]:
        """The inner scores [question] by strength; what is not known yet is fitted at once."""
        if states := self._states:
            # Of one state for everybody these are the logits of plain inner probes.
            found = fit_inner(material, self.layer_, strengths, states=states)
            return {C: of.logits["clean"] for C, of in found.items()}
        keys = {C: ("reweighted", self.kind, self.beta_, self.layer_, C) for C in strengths}
        new = [C for C, key in keys.items() if key not in material.memo]
        if new:
            for C, scores in self._fit_rests(material, new).items():
                material.memo[keys[C]] = scores
        return {C: material.memo[key] for C, key in keys.items()}

    def _fit_rests(self, material: Material, strengths: Sequence[float]) -> dict[float, np.ndarray]:
        """The inner scores [question] by strength, from probes that are fitted at once.

        The matrix holds an answer under +β, under −β or both, as the inner folds' gates want it.
        """
        layer, n = self.layer_, len(material)
        fit_rests(material, layer, strengths)
        parts = rests(material)
        learn_gates(material, parts, layer, strengths)
        asked = [
            (C, part, _known_gate(part.material, layer, C)) for C in strengths for part in parts
        ]
        learns = np.zeros((len(asked), 2 * n), dtype=bool)
        for fit, (_, part, gate) in enumerate(asked):
            is_q = np.broadcast_to(gate.is_q, len(part.rows))
            learns[fit, np.where(is_q, part.rows, n + part.rows)] = True
        signs = (self.beta_, -self.beta_)
        both = np.concatenate([material.layer(state_name(self.kind, b), layer) for b in signs])
        used = learns.any(axis=0)
        x, z, learns = both[used].astype(np.float64), np.tile(material.z, 2)[used], learns[:, used]
        check_finite(x)
        C = np.array([C for C, _, _ in asked])
        fits = fit_many(x, z, class_weights(z, learns, "weights"), C)
        coefs, intercepts = to_single(*fits, x, learns)
        clean = material.layer("clean", layer)
        scores = {C: np.full(n, np.nan) for C in strengths}
        for (C, part, gate), coef, intercept in zip(asked, coefs, intercepts, strict=True):
            held = np.setdiff1d(np.arange(n), part.rows)
            is_q = linear(clean[held], gate.vector(material, layer), gate.bias) > 0
            picked = both[np.where(is_q, held, n + held)]
            scores[C][held] = linear(picked, coef, float(intercept))
        return scores

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

    def vector(self, material: Material, layer: int) -> np.ndarray:
        """Its coefficients, [width]; zeros where there are none."""
        if self.coef is not None:
            return self.coef
        return np.zeros(material.layer("clean", layer).shape[1], np.float32)


_ALL_Q = Gate(None, 1.0, np.array(True))


def learn_gate(material: Material, layer: int, *, C: float) -> Gate:
    """The gate of this layer and strength, from the training material alone; whatever β is."""
    learn_gates(material, [Part(np.arange(len(material)), material)], layer, (C,))
    return _known_gate(material, layer, C)


def learn_gates(
    whole: Material, parts: Sequence[Part], layer: int, strengths: Sequence[float]
) -> None:
    """Fits the gates that the parts' memos do not hold yet, all at once, and puts them there."""
    wanted: list[tuple[Part, float]] = []
    for part, C in ((part, C) for part in parts for C in strengths):
        if _gate_key(layer, C) in part.material.memo:
            continue
        groups = pathway_groups(part.material, layer, C=C)
        share = float(np.nanmean(groups))
        if share in (0.0, 1.0):
            one_for_all = Gate(None, 1.0 if share else -1.0, np.array(bool(share)))
            part.material.memo[_gate_key(layer, C)] = one_for_all
        else:
            wanted.append((part, C))
    if not wanted:
        return
    x = whole.layer("clean", layer).astype(np.float64)
    tasks = [_gate_task(part, layer, C) for part, C in wanted]
    found = fit_fold_tasks(x, tasks, balance="none", everyone=True)
    # Answers without a group are read too, by the gate of their own fold.
    reads = [FoldTask(p.rows, p.material.z, p.material.inner, C) for p, C in wanted]
    logits = task_logits(found, reads, x)
    for (part, C), task, gates, logit in zip(wanted, tasks, found, logits, strict=True):
        inner, is_q = part.material.inner, logit > 0
        for fold in np.unique(inner[np.isnan(logit)]):
            # All other folds are on one pathway.
            is_q[inner == fold] = bool(task.label[task.fold != fold][0])
        gate = Gate(gates.weights[NO_FOLD], gates.intercept[NO_FOLD], is_q)
        part.material.memo[_gate_key(layer, C)] = gate


def _gate_task(part: Part, layer: int, C: float) -> FoldTask:
    """The gate among the answers whose pathway is known."""
    groups = pathway_groups(part.material, layer, C=C)
    placed = np.isfinite(groups)
    return FoldTask(part.rows[placed], groups[placed], part.material.inner[placed], C)


def _known_gate(material: Material, layer: int, C: float) -> Gate:
    return material.memo[_gate_key(layer, C)]


def _gate_key(layer: int, C: float) -> tuple:
    return ("gate", layer, C)
