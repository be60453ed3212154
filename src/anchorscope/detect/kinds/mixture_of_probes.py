"""Mixture-of-Probes: one expert probe for each pathway, and a gate on the clean state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit

from anchorscope.detect.inner_probes import (
    STRENGTHS,
    Part,
    best_layers,
    choose,
    fit_rests,
    pathway_groups,
    rests,
    strengths_from,
)
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method
from anchorscope.probes.folds import MIN_PER_CLASS
from anchorscope.probes.linear_probe import check_finite
from anchorscope.probes.many_fits import class_weights, fit_many, to_single

_EDGE = 1e-12  # keeps the mixture's logit finite


class MixtureOfProbes(Method):
    """Two experts and a gate, with a layer and a strength of their own.

    Our reconstruction from the paper's text, for its claim that it beats the single probe.
    """

    name = "MoP"

    def lacks(self, material: Material) -> str:
        return "" if material.has("knockout") else "there are no knocked-out states"

    def decision_function(self, material: Material) -> np.ndarray:
        """The mixture's logit of each answer, [question]."""
        return self.mixture_.logits(material.layer("clean", self.layer_))

    def about(self) -> dict[str, Any]:
        return {"layer": self.layer_, "C": self.C_}

    def _choose(self, material: Material) -> None:
        self.layer_, self.C_, _ = choose(material)
        self._choose_value("layer_", best_layers(material), material)
        self._fit_rests(material, STRENGTHS)
        self._choose_value("C_", strengths_from(self.C_), material)

    def _learn(self, material: Material) -> None:
        self._fit_parts(material, [Part(np.arange(len(material)), material)], (self.C_,))
        self.mixture_ = material.memo[self._key(self.C_)]

    def _inner_scores(self, material: Material) -> np.ndarray:
        self._fit_rests(material, (self.C_,))
        return super()._inner_scores(material)

    def _fit_rests(self, material: Material, strengths: Sequence[float]) -> None:
        """Fit the mixture of every inner fold's rest in one batch; `_learn` finds it there."""
        fit_rests(material, self.layer_, strengths)
        self._fit_parts(material, rests(material), strengths)

    def _fit_parts(
        self, whole: Material, parts: Sequence[Part], strengths: Sequence[float]
    ) -> None:
        """Fit the mixtures that the parts' memos do not hold yet, and put them there."""
        wanted = [
            (part, C) for part in parts for C in strengths if self._key(C) not in part.material.memo
        ]
        if not wanted:
            return
        x = whole.layer("clean", self.layer_).astype(np.float64)
        tasks = [
            MixtureTask(
                part.rows, part.material.z, pathway_groups(part.material, self.layer_, C=C), C
            )
            for part, C in wanted
        ]
        for (part, C), mixture in zip(wanted, fit_mixtures(x, tasks), strict=True):
            part.material.memo[self._key(C)] = mixture

    def _key(self, C: float) -> tuple:
        return ("mixture", self.layer_, C)


@dataclass(frozen=True)
class Mixture:
    """P(z = 1) = g · P_Q + (1 − g) · P_A, with g = P(Q) from the state itself."""

    coef: np.ndarray  # [3, width], of A, Q and the gate
    intercept: np.ndarray  # [3]
    own: np.ndarray  # bool [2]: whether A and Q have an expert of their own

    def expert_logits(self, x: np.ndarray) -> np.ndarray:
        """The logits of A, Q and the gate for states x [question, width], [question, 3]."""
        return x.astype(np.float64) @ self.coef.T.astype(np.float64) + self.intercept

    def logits(self, x: np.ndarray) -> np.ndarray:
        """The mixture's logit for states x [question, width], [question]."""
        a, q, gate = expit(self.expert_logits(x)).T
        return logit(np.clip(gate * q + (1 - gate) * a, _EDGE, 1 - _EDGE))


class MixtureTask(NamedTuple):
    """A mixture to fit: which rows of the states it learns from, their classes and groups."""

    rows: np.ndarray  # numbers, [question]
    z: np.ndarray  # [question]
    groups: np.ndarray  # [question], 1.0 for Q, 0.0 for A, NaN for neither
    C: float


def fit_mixtures(x: np.ndarray, tasks: Sequence[MixtureTask]) -> list[Mixture]:
    """Fit mixtures on rows of the same states x [row, width], all in one batch.

    A group with too few answers of a class has no expert of its own: the probe of all answers
    takes its place. Where only one group is there, the gate is a constant.
    """
    check_finite(x)
    owned = [_own_experts(task) for task in tasks]
    planned = [_expert_rows(task, own, len(x)) for task, own in zip(tasks, owned, strict=True)]
    learns, labels = (np.concatenate(part) for part in zip(*planned, strict=True))
    owner = np.repeat(np.arange(len(tasks)), [len(rows) for rows, _ in planned])
    C = np.array([task.C for task in tasks])[owner]
    # Unweighted: how often a group is wrong is part of what its expert knows, and the gate gives
    # the probability of Q rather than an order.
    fits = fit_many(x, labels, class_weights(labels, learns, "none"), C)
    coefficients, intercepts = to_single(*fits, x, learns)
    mixtures = []
    for number, task in enumerate(tasks):
        coef, intercept = coefficients[owner == number], intercepts[owner == number]
        if len(coef) < 3:
            share = np.clip(np.nanmean(task.groups), 1e-6, 1 - 1e-6)
            coef = np.vstack([coef, np.zeros_like(coef[:1])])
            intercept = np.append(intercept, logit(share))
        mixtures.append(Mixture(coef, intercept, owned[number]))
    return mixtures


def _own_experts(task: MixtureTask) -> np.ndarray:
    """Whether A and Q each have enough answers of both classes, bool [2]."""
    members = task.groups == np.array([[0.0], [1.0]])
    counts = [[np.sum(rows & (task.z == value)) for value in (0, 1)] for rows in members]
    return np.min(counts, axis=1) >= MIN_PER_CLASS


def _expert_rows(task: MixtureTask, own: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of `count` rows A, Q and the gate learn from, bool [fit, row], and their labels."""
    members = task.groups == np.array([[0.0], [1.0]])
    learns = np.where(own[:, None], members, True)
    labels = np.array([task.z, task.z], dtype=float)
    placed = np.isfinite(task.groups)
    if len(np.unique(task.groups[placed])) == 2:
        learns = np.vstack([learns, placed])
        labels = np.vstack([labels, np.where(placed, task.groups, 0.0)])
    wide_learns = np.zeros((len(learns), count), dtype=bool)
    wide_labels = np.zeros((len(labels), count))
    wide_learns[:, task.rows], wide_labels[:, task.rows] = learns, labels
    return wide_learns, wide_labels
