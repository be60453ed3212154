"""Probes beside a score: the belief after every layer, and the pathway.

The score itself comes from the detector's own method. These probes only say where along the
layers the model's state begins to look wrong, and whether that sense comes from the question (Q)
or from the answer (A), as a gate on the clean state predicts it without a knockout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from anchorscope.detect.inner_probes import choose, inner_logits, pathway_groups
from anchorscope.detect.material import Material
from anchorscope.detect.method import Platt
from anchorscope.parallel import in_parallel
from anchorscope.probes.folds import MIN_PER_CLASS
from anchorscope.probes.linear_probe import DEFAULT_C, LinearProbe


@dataclass(frozen=True, kw_only=True)
class Beliefs:
    """A probe for every layer, calibrated, and a gate of the pathway at one layer."""

    coef: np.ndarray  # [layer, width] float32
    intercept: np.ndarray  # [layer]
    gate: np.ndarray | None = None  # [width] float32; None: the run had no knockout to learn from
    gate_intercept: float = 0.0
    gate_layer: int = 1

    def wrong(self, states: np.ndarray) -> np.ndarray:
        """P(wrong) after each layer, [question, layer], from states [question, layer, width]."""
        logit = np.einsum("qlw,lw->ql", states.astype(np.float64), self.coef.astype(np.float64))
        return expit(logit + self.intercept)

    def wrong_at(self, layer: int, states: np.ndarray) -> np.ndarray:
        """P(wrong) after one layer (from 1), [question], from its states [question, width]."""
        coef = self.coef[layer - 1].astype(np.float64)
        return expit(states.astype(np.float64) @ coef + self.intercept[layer - 1])

    def question_anchored(self, states: np.ndarray) -> np.ndarray:
        """P(Q) of each answer, [question]; NaN where no gate was learnt."""
        if self.gate is None:
            return np.full(len(states), np.nan)
        at = states[:, self.gate_layer - 1].astype(np.float64)
        return expit(at @ self.gate.astype(np.float64) + self.gate_intercept)

    def tensors(self) -> dict[str, np.ndarray]:
        """The arrays that make it up, ready for safetensors."""
        arrays = {"beliefs.coef": self.coef, "beliefs.intercept": self.intercept}
        if self.gate is not None:
            place = np.array([self.gate_intercept, self.gate_layer], dtype=np.float64)
            arrays |= {"beliefs.gate": self.gate, "beliefs.gate_at": place}
        return arrays

    @classmethod
    def restore(cls, tensors: dict[str, np.ndarray]) -> Beliefs | None:
        """What `tensors` gave; None where a folder holds none."""
        if "beliefs.coef" not in tensors:
            return None
        intercept, layer = tensors.get("beliefs.gate_at", np.array([0.0, 1.0])).tolist()
        return cls(
            coef=tensors["beliefs.coef"],
            intercept=tensors["beliefs.intercept"],
            gate=tensors.get("beliefs.gate"),
            gate_intercept=intercept,
            gate_layer=int(layer),
        )


def learn_beliefs(material: Material) -> Beliefs:
    """The probes of all layers and the gate, trained on the material of a detector."""
    layers = range(1, material.bank.layers + 1)
    probes = in_parallel(lambda layer: _calibrated_probe(material, layer), layers)
    choice = choose(material)
    gate = _gate(material, choice.layer, choice.C)
    return Beliefs(
        coef=np.stack([coef for coef, _ in probes]),
        intercept=np.array([intercept for _, intercept in probes]),
        gate=None if gate is None else gate.coef_[0],
        gate_intercept=0.0 if gate is None else float(gate.intercept_[0]),
        gate_layer=choice.layer,
    )


def _calibrated_probe(material: Material, layer: int) -> tuple[np.ndarray, float]:
    """Weights [width] and intercept of a layer's probe, Platt's line folded into them."""
    held_out = inner_logits(material, layer, C=DEFAULT_C)["clean"]
    line = Platt.fit(held_out, material.z)
    probe = LinearProbe(C=DEFAULT_C).fit(material.layer("clean", layer), material.z)
    coef = (line.slope * probe.coef_[0]).astype(np.float32)
    return coef, float(line.slope * probe.intercept_[0] + line.intercept)


def _gate(material: Material, layer: int, C: float) -> LinearProbe | None:
    """The classifier of the pathway from the clean state; None where it cannot be learnt."""
    if not material.has("knockout"):
        return None
    groups = pathway_groups(material, layer, C=C)
    placed = np.isfinite(groups)
    if min(np.sum(groups[placed] == which) for which in (0, 1)) < MIN_PER_CLASS:
        return None
    # Unweighted: it is to give the probability of Q, not to sort by it.
    x = material.layer("clean", layer)[placed]
    return LinearProbe(C=C, balance="none").fit(x, groups[placed])
