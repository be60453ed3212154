"""Mixture-of-Probes: one expert per pathway, a gate on the clean state, and its ablations."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import expit, logit
from sklearn.utils.validation import check_is_fitted, validate_data

from anchorscope.detect.inner_probes import (
    STRENGTHS,
    Part,
    best_layers,
    choose,
    clusters,
    fit_rests,
    pathway_groups,
    rests,
    share_whole_probes,
    strengths_from,
    whole_probe,
)
from anchorscope.detect.kinds.probes import linear
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method, Needs
from anchorscope.pathways.effects import flips
from anchorscope.probes.folds import MIN_PER_CLASS
from anchorscope.probes.linear_probe import (
    DEFAULT_C,
    LogitClassifier,
    check_finite,
    checked_for_fit,
)
from anchorscope.probes.many_fits import class_weights, fit_many, to_single

Gate = Literal["learned", "random", "oracle"]
By = Literal["pathway", "cluster"]
_NAMES = {
    ("learned", "pathway"): "MoP",
    ("random", "pathway"): "MoP, random gate",
    ("oracle", "pathway"): "MoP, oracle gate",
    ("learned", "cluster"): "MoP, no pathway labels",
}
_EDGE = 1e-12  # keeps the mixture's logit finite


class MixtureOfProbes(Method):
    """One expert per pathway and a gate on the clean state, with a layer and a strength of its own.

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
        mixture = Mixture(C=self.C_, seed=self.seed)
        mixture.coef_, mixture.intercept_ = tensors["coef"], tensors["intercept"]
        mixture.own_, mixture.classes_ = np.array(about["own_expert"]), np.array([0, 1])
        mixture.n_features_in_ = mixture.coef_.shape[1]
        self.mixture_ = mixture
        return self

    def _choose(self, material: Material) -> None:
        self.layer_, self.C_, _ = choose(material)
        self._choose_value("layer_", best_layers(material), material)
        self._fit_rests(material, STRENGTHS)
        self._choose_value("C_", strengths_from(self.C_), material)

    def _learn(self, material: Material) -> None:
        # The kinds of gate share their experts: what one trained on these answers serves all.
        whole = Part(np.arange(len(material)), material)
        self._fit_together(material, [whole], (self.C_,))
        self.mixture_ = material.memo[self._key(self.C_)]
        if self.gate == "oracle":
            self.reader_ = whole_probe(material, self.layer_, C=self.C_)

    def _inner_scores(self, material: Material) -> np.ndarray:
        self._fit_rests(material, (self.C_,))
        if self.gate == "oracle":
            share_whole_probes(material, self.layer_, C=self.C_)
        return super()._inner_scores(material)

    def _fit_rests(self, material: Material, strengths: Sequence[float]) -> None:
        """Mixtures of every inner fold's rest, all fitted at once; `_learn` finds them there."""
        if self.experts == "pathway":
            fit_rests(material, self.layer_, strengths)
        self._fit_together(material, rests(material), strengths)

    def _fit_together(
        self, whole: Material, parts: Sequence[Part], strengths: Sequence[float]
    ) -> None:
        """Fits the mixtures that the parts' memos do not hold yet, and puts them there."""
        wanted = [
            (part, C) for part in parts for C in strengths if self._key(C) not in part.material.memo
        ]
        if not wanted:
            return
        made = [Mixture(C=C, seed=self.seed) for _, C in wanted]
        x = whole.layer("clean", self.layer_).astype(np.float64)
        check_finite(x)
        fit_mixtures(
            x,
            [
                Learner(mixture, part.rows, part.material.z, self._groups(part.material, C))
                for mixture, (part, C) in zip(made, wanted, strict=True)
            ],
        )
        for mixture, (part, C) in zip(made, wanted, strict=True):
            part.material.memo[self._key(C)] = mixture

    def _key(self, C: float) -> tuple:
        return ("mixture", self.experts, self.layer_, C, self.seed)

    def _groups(self, material: Material, C: float) -> np.ndarray:
        if self.experts == "pathway":
            return pathway_groups(material, self.layer_, C=C)
        layer, seed = self.layer_, self.seed
        return material.once(
            ("clusters", layer, seed), lambda: clusters(material.layer("clean", layer), seed=seed)
        )

    def _given_gate(self, material: Material, x: np.ndarray) -> np.ndarray | None:
        if self.gate == "learned":
            return None
        if self.gate == "random":
            return random_gate(material.ids, self.mixture_.share_, seed=self.seed)
        weights, intercept = self.reader_
        knocked = linear(material.layer("knockout", self.layer_), weights, intercept)
        flipped = flips(linear(x, weights, intercept), knocked)
        return np.where(np.isnan(flipped), self.mixture_.share_, flipped)


class Mixture(LogitClassifier):
    """P(z = 1) = g · P_Q + (1 − g) · P_A, with g = P(Q) from the state itself.

    `groups` of `fit` says which answers each expert learns from (1.0 is Q, NaN is nobody's);
    without it the groups are two clusters of the states. A group with too few answers of a class
    has no expert of its own: `own_` is then False and the probe of all answers stands in.
    """

    n_features_in_: int
    classes_: np.ndarray
    coef_: np.ndarray  # [3, width], of A, Q and the gate
    intercept_: np.ndarray  # [3]
    own_: np.ndarray  # bool [2]
    share_: float  # of Q

    def __init__(self, *, C: float = DEFAULT_C, seed: int = 0):
        self.C = C
        self.seed = seed

    def fit(self, X, y, groups: np.ndarray | None = None) -> Mixture:
        """The mixture itself, trained on states X [question, width] and their classes y."""
        X, z = checked_for_fit(self, X, y)
        groups = clusters(X, seed=self.seed) if groups is None else np.asarray(groups, float)
        fit_mixtures(X, [Learner(self, np.arange(len(X)), z, groups)])
        return self

    def expert_logits(self, X) -> np.ndarray:
        """The logit of each expert and of the gate, [question, 3]: A, Q, gate."""
        check_is_fitted(self)
        x: Any = validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite=False)
        check_finite(x)
        return x @ self.coef_.T.astype(np.float64) + self.intercept_

    def decision_function(self, X, gate: np.ndarray | None = None) -> np.ndarray:
        """The mixture's logit, [question]; `gate` [question] replaces the learnt P(Q)."""
        by_expert = self.expert_logits(X)
        g = expit(by_expert[:, 2]) if gate is None else gate
        mixed = g * expit(by_expert[:, 1]) + (1 - g) * expit(by_expert[:, 0])
        return logit(np.clip(mixed, _EDGE, 1 - _EDGE))


class Learner(NamedTuple):
    """A mixture to be fitted: on which rows of the states, with their classes and groups."""

    mixture: Mixture
    rows: np.ndarray  # numbers, [question]
    z: np.ndarray
    groups: np.ndarray


def fit_mixtures(x: np.ndarray, learners: Sequence[Learner]) -> None:
    """Trains mixtures on rows of the same finite states x [row, width], all at once."""
    planned = [_experts(one, len(x)) for one in learners]
    learns, labels = (np.concatenate(of) for of in zip(*planned, strict=True))
    owner = np.repeat(np.arange(len(learners)), [len(of) for of, _ in planned])
    C = np.array([float(one.mixture.C) for one in learners])[owner]
    # Unweighted: how often a group is wrong is part of what its expert knows, and the gate is to
    # give the probability of Q, not to sort by it.
    fits = fit_many(x, labels, class_weights(labels, learns, "none"), C)
    coefficients, intercepts = to_single(*fits, x, learns)
    for number, (mixture, _, _, _) in enumerate(learners):
        coef, intercept = coefficients[owner == number], intercepts[owner == number]
        if len(coef) < 3:
            flat = logit(np.clip(mixture.share_, 1e-6, 1 - 1e-6))
            coef, intercept = np.vstack([coef, np.zeros_like(coef[:1])]), np.append(intercept, flat)
        mixture.coef_, mixture.intercept_ = coef, intercept
        mixture.n_features_in_ = x.shape[1]
        if not hasattr(mixture, "classes_"):
            mixture.classes_ = np.array([0, 1])


def _experts(one: Learner, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of `count` rows the experts A and Q learn from, and the gate where there are two
    groups, bool [fit, row]; their labels [fit, row].
    """
    mixture, rows, z, groups = one
    mixture.share_ = float(np.nanmean(groups))
    members = groups == np.array([[0.0], [1.0]])
    counts = np.array([[np.sum(of & (z == value)) for value in (0, 1)] for of in members])
    mixture.own_ = counts.min(axis=1) >= MIN_PER_CLASS
    learns, labels = np.where(mixture.own_[:, None], members, True), np.array([z, z], dtype=float)
    placed = np.isfinite(groups)
    if len(np.unique(groups[placed])) == 2:
        learns = np.vstack([learns, placed])
        labels = np.vstack([labels, np.where(placed, groups, 0.0)])
    return _spread(learns, rows, count), _spread(labels, rows, count)


def _spread(of: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """The columns at `rows` of `count` columns, 0 elsewhere."""
    wide = np.zeros((len(of), count), dtype=of.dtype)
    wide[:, rows] = of
    return wide


def random_gate(ids: Sequence[str], share: float, *, seed: int) -> np.ndarray:
    """1.0 for a `share` of the questions, drawn by id, [question]."""
    drawn = [hashlib.blake2b(f"{seed}:{id}".encode(), digest_size=8).digest() for id in ids]
    return np.array([int.from_bytes(d, "big") / 2**64 < share for d in drawn], dtype=np.float64)
