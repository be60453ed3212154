"""Pathway Reweighting: attention from E_Q to E_A strengthened for Q, weakened for A, then probed.

The states come from passes with attention scores moved by +β or −β on those edges; the states of
an intervention "reweight+1.0" are those of β = 1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

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
from anchorscope.detect.method import Method
from anchorscope.engine.passes import reweighted_name
from anchorscope.probes.fold_probes import NO_FOLD, FoldTask, fit_fold_tasks, task_logits
from anchorscope.probes.linear_probe import LinearProbe, check_finite
from anchorscope.probes.many_fits import class_weights, fit_many, to_single


def betas(material: Material) -> tuple[float, ...]:
    """The β above 0 whose states are there with both signs, in rising order."""
    matches = [re.fullmatch(r"reweight([+-][0-9.]+)", name) for name in material.bank.names]
    values = {float(match[1]) for match in matches if match}
    return tuple(sorted(beta for beta in values if beta > 0 and -beta in values))


class PathwayReweighting(Method):
    """A probe on states reweighted by the predicted pathway, +β for Q and −β for A.

    β (0 too), layer and strength are chosen on held-out training answers, one after the other.
    Our reconstruction from the paper's text, for its claim that it beats the single probe.
    """

    name = "PR"
    extra_passes = 1.0
    beta_: float

    def lacks(self, material: Material) -> str:
        if not betas(material):
            return "there are no states of 'reweight+β' and 'reweight-β'"
        return "" if material.has("knockout") else "there are no knocked-out states"

    def decision_function(self, material: Material) -> np.ndarray:
        """The probe's logit of each answer on its reweighted state, [question]."""
        x = self._reweighted(material, self.predicts_q(material))
        return linear(x, self.coef_, self.intercept_)

    def predicts_q(self, material: Material) -> np.ndarray:
        """Whether each answer is taken for Q, from its clean state, bool [question]."""
        return self.gate_.is_positive(material.layer("clean", self.layer_))

    def about(self) -> dict[str, Any]:
        return {"layer": self.layer_, "C": self.C_, "beta": self.beta_}

    def _choose(self, material: Material) -> None:
        self.layer_, self.C_, _ = choose(material)
        self._choose_value("beta_", (0.0, *betas(material)), material)  # at 0: the single probe
        self._choose_value("layer_", best_layers(material), material)
        self._held_out(material, STRENGTHS)
        self._choose_value("C_", strengths_from(self.C_), material)

    def _learn(self, material: Material) -> None:
        whole = Part(np.arange(len(material)), material)
        learn_gates(material, [whole], self.layer_, (self.C_,))
        self.gate_ = material.memo[_gate_key(self.layer_, self.C_)]
        if not self.beta_:
            self.coef_, self.intercept_ = whole_probe(material, self.layer_, C=self.C_)
            return
        x = self._reweighted(material, np.broadcast_to(self.gate_.held_out, len(material)))
        probe = LinearProbe(C=self.C_).fit(x, material.z)
        self.coef_, self.intercept_ = probe.coef_[0], float(probe.intercept_[0])

    def _inner_scores(self, material: Material) -> np.ndarray:
        return self._held_out(material, (self.C_,))[self.C_]

    def _held_out(self, material: Material, strengths: Sequence[float]) -> dict[float, np.ndarray]:
        """The inner scores [question] by strength; those not known yet are fitted in one batch."""
        if not self.beta_:
            found = fit_inner(material, self.layer_, strengths)
            return {C: inner.logits["clean"] for C, inner in found.items()}
        keys = {C: ("reweighted", self.beta_, self.layer_, C) for C in strengths}
        new = [C for C, key in keys.items() if key not in material.memo]
        if new:
            for C, scores in self._fit_rests(material, new).items():
                material.memo[keys[C]] = scores
        return {C: material.memo[key] for C, key in keys.items()}

    def _fit_rests(self, material: Material, strengths: Sequence[float]) -> dict[float, np.ndarray]:
        """The inner scores [question] by strength, from probes that are fitted in one batch.

        The matrix holds an answer under +β, under −β or both, as the inner folds' gates need it.
        """
        layer, n = self.layer_, len(material)
        fit_rests(material, layer, strengths)
        parts = rests(material)
        learn_gates(material, parts, layer, strengths)
        tasks = [
            (C, part, part.material.memo[_gate_key(layer, C)]) for C in strengths for part in parts
        ]
        learns = np.zeros((len(tasks), 2 * n), dtype=bool)
        for fit, (_, part, gate) in enumerate(tasks):
            is_q = np.broadcast_to(gate.held_out, len(part.rows))
            learns[fit, np.where(is_q, part.rows, n + part.rows)] = True
        signs = (self.beta_, -self.beta_)
        both = np.concatenate([material.layer(reweighted_name(b), layer) for b in signs])
        used = learns.any(axis=0)
        x, z, learns = both[used].astype(np.float64), np.tile(material.z, 2)[used], learns[:, used]
        check_finite(x)
        C = np.array([C for C, _, _ in tasks])
        fits = fit_many(x, z, class_weights(z, learns, "weights"), C)
        coefs, intercepts = to_single(*fits, x, learns)
        clean = material.layer("clean", layer)
        scores = {C: np.full(n, np.nan) for C in strengths}
        for (C, part, gate), coef, intercept in zip(tasks, coefs, intercepts, strict=True):
            held = np.setdiff1d(np.arange(n), part.rows)
            picked = both[np.where(gate.is_positive(clean[held]), held, n + held)]
            scores[C][held] = linear(picked, coef, float(intercept))
        return scores

    def _reweighted(self, material: Material, is_q: np.ndarray) -> np.ndarray:
        """The state of each answer under its own sign of β, [question, width]."""
        if not self.beta_:
            return material.layer("clean", self.layer_)
        plus, minus = (
            material.layer(reweighted_name(beta), self.layer_) for beta in (self.beta_, -self.beta_)
        )
        return np.where(is_q[:, None], plus, minus)


class Gate(NamedTuple):
    """A probe for Q on the clean state, and what gates that did not see an answer take it for."""

    coef: np.ndarray | None  # [width]; None: all answers are on one pathway
    bias: float
    held_out: np.ndarray  # bool [question], or one for all

    def is_positive(self, states: np.ndarray) -> np.ndarray:
        """Whether each state [question, width] is taken for Q, bool [question]."""
        if self.coef is None:
            return np.full(len(states), self.bias > 0)
        return linear(states, self.coef, self.bias) > 0


def learn_gates(
    whole: Material, parts: Sequence[Part], layer: int, strengths: Sequence[float]
) -> None:
    """Fit the gates that the parts' memos do not hold yet, in one batch, and put them there."""
    wanted: list[tuple[Part, float]] = []
    for part, C in ((part, C) for part in parts for C in strengths):
        if _gate_key(layer, C) in part.material.memo:
            continue
        share = float(np.nanmean(pathway_groups(part.material, layer, C=C)))
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
    """The gate's task among the answers whose pathway is known."""
    groups = pathway_groups(part.material, layer, C=C)
    placed = np.isfinite(groups)
    return FoldTask(part.rows[placed], groups[placed], part.material.inner[placed], C)


def _gate_key(layer: int, C: float) -> tuple:
    return ("gate", layer, C)
