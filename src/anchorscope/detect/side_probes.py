"""Side probes of a detector: distance, belief by layer, pathway, warning before the answer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from scipy.special import expit
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from anchorscope.detect.calibration import Isotonic, Platt, best_threshold
from anchorscope.detect.kinds import METHODS, Probes
from anchorscope.detect.material import Material
from anchorscope.detect.method import choose, inner_logits, pathway_groups
from anchorscope.detect.pathway_kinds import linear
from anchorscope.parallel import in_parallel
from anchorscope.probes.folds import MIN_PER_CLASS
from anchorscope.probes.linear_probe import DEFAULT_C, LinearProbe

DIRECTIONS = 64  # principal components kept; the rest share one variance, as in probabilistic PCA
_PER_DIRECTION = 4  # least training answers for each, to estimate its variance
_STEPS = 101  # quantiles kept
FAR = 0.95  # share of held-out training answers that are nearer: beyond it nothing is concluded
Part = TypeVar("Part")


def arrays_of(part: Any, prefix: str) -> dict[str, np.ndarray]:
    """The arrays and numbers of a dataclass by name, ready for safetensors."""
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    return {
        prefix + name: np.asarray(value)
        for name, value in values.items()
        if isinstance(value, int | float | np.ndarray)
    }


def from_arrays(kind: type[Part], arrays: dict[str, np.ndarray], prefix: str, **more: Any) -> Part:
    """Restore a dataclass from `arrays_of`; a TypeError if an array is missing or unknown."""
    own = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
    return kind(**{name: a if a.ndim else a.item() for name, a in own.items()}, **more)


# --- Distance from the training answers ---


@dataclass(frozen=True, kw_only=True)
class Distance:
    """A Mahalanobis distance at one layer, with the distances of held-out training answers.

    The covariance keeps its leading directions and one variance for all others; full covariances
    (Ledoit-Wolf) of wide models would make the detector's file a hundred times as large.
    """

    layer: int
    mean: np.ndarray  # [width]
    scale: np.ndarray  # [width]
    directions: np.ndarray  # [direction, width], of the standardised states
    variances: np.ndarray  # [direction]
    rest: float  # the variance in every other direction
    seen: np.ndarray  # [quantile], distances of held-out training answers, rising

    def distances(self, states: np.ndarray) -> np.ndarray:
        """The distance of each state [question, width], [question]."""
        x = (states.astype(np.float64) - self.mean) / self.scale
        along = x @ self.directions.T.astype(np.float64)
        beside = (x**2).sum(axis=1) - (along**2).sum(axis=1)
        return np.sqrt((along**2 / self.variances).sum(axis=1) + beside.clip(0) / self.rest)

    def place(self, states: np.ndarray) -> np.ndarray:
        """The share of held-out training answers that are nearer than each state, [question]."""
        return np.searchsorted(self.seen, self.distances(states)) / len(self.seen)


def learn_distance(
    material: Material, *, states: str = "clean", layer: int | None = None
) -> Distance:
    """Fit the distance from these answers at `layer`, by default the single probe's layer."""
    layer = choose(material, states=states)[0] if layer is None else layer
    x = material.layer(states, layer).astype(np.float64)

    def fit(x: np.ndarray, seen: np.ndarray) -> Distance:
        scaler = StandardScaler().fit(x)
        count = max(1, min(DIRECTIONS, len(x) // _PER_DIRECTION, x.shape[1] - 1))
        spread = PCA(n_components=count, random_state=0).fit(scaler.transform(x))
        return Distance(
            layer=layer,
            mean=np.asarray(scaler.mean_),
            scale=np.asarray(scaler.scale_),
            directions=np.asarray(spread.components_, dtype=np.float32),
            variances=np.asarray(spread.explained_variance_).clip(1e-12),
            rest=float(max(spread.noise_variance_, 1e-12)),
            seen=seen,
        )

    held_out = np.empty(len(x))
    for fold in np.unique(material.inner):
        held = material.inner == fold
        held_out[held] = fit(x[~held], np.empty(0)).distances(x[held])
    return fit(x, np.quantile(held_out, np.linspace(0, 1, _STEPS)))


def far_reason(distance: float) -> str:
    """The reason to abstain at this distance; empty if it is near enough, or not known."""
    if not distance >= FAR:
        return ""
    return (
        f"it is unlike what the detector learnt from: {distance:.0%} of the held-out training "
        f"answers are nearer to the others, and from {FAR:.0%} on nothing is concluded"
    )


# --- Belief by layer, and the pathway ---


@dataclass(frozen=True, kw_only=True)
class Beliefs:
    """A calibrated probe for every layer, and a gate that predicts the pathway at one layer.

    They show where along the layers the state begins to look wrong, and whether that comes from the
    question (Q) or the answer (A). The score itself comes from the detector's own method.
    """

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
        return expit(linear(states, self.coef[layer - 1], self.intercept[layer - 1]))

    def question_anchored(self, states: np.ndarray) -> np.ndarray:
        """P(Q) of each answer, [question]; NaN where no gate was learnt."""
        if self.gate is None:
            return np.full(len(states), np.nan)
        return expit(linear(states[:, self.gate_layer - 1], self.gate, self.gate_intercept))


def learn_beliefs(material: Material) -> Beliefs:
    """Train the probes of all layers and the gate on the material of a detector."""

    def probe(layer: int) -> tuple[np.ndarray, float]:
        """Weights [width] and intercept of a layer's probe, with Platt scaling folded in."""
        line = Platt.fit(inner_logits(material, layer)["clean"], material.z)
        fitted = LinearProbe(C=DEFAULT_C).fit(material.layer("clean", layer), material.z)
        coef = (line.slope * fitted.coef_[0]).astype(np.float32)
        return coef, float(line.slope * fitted.intercept_[0] + line.intercept)

    probes = in_parallel(probe, range(1, material.bank.layers + 1))
    layer, C = choose(material)
    gate: dict[str, Any] = {}
    if material.has("knockout"):
        groups = pathway_groups(material, layer, C=C)
        placed = np.isfinite(groups)
        if min(np.sum(groups[placed] == which) for which in (0, 1)) >= MIN_PER_CLASS:
            # Classes are unweighted: the gate gives the probability of Q, not only a ranking.
            fitted = LinearProbe(C=C, balance="none")
            fitted.fit(material.layer("clean", layer)[placed], groups[placed])
            gate = {"gate": fitted.coef_[0], "gate_intercept": float(fitted.intercept_[0])}
    coef, intercept = zip(*probes, strict=True)
    return Beliefs(coef=np.stack(coef), intercept=np.array(intercept), gate_layer=layer, **gate)


# --- A warning before the answer ---


@dataclass(frozen=True, kw_only=True)
class PreAnswerProbe:
    """A warning before the answer: the probe at the last question token, calibrated."""

    layer: int
    coef: np.ndarray  # [width]
    intercept: float
    calibration: Platt | Isotonic
    threshold: float
    evaluation: dict[str, Any]  # auroc, auroc_low, auroc_high, n: on unseen entities
    distance: Distance | None = None  # from the training questions

    def probability(self, states: np.ndarray) -> np.ndarray:
        """P(wrong) from states [question, width] at the last question token, [question]."""
        return self.calibration.probability(linear(states, self.coef, self.intercept))


def learn_pre_answer(material: Material, evaluation: dict[str, Any]) -> PreAnswerProbe | None:
    """Train the pre-answer probe on a detector's material; None without states of the question."""
    probe = METHODS["question-only"]()
    if probe.lacks(material):
        return None
    assert isinstance(probe, Probes)
    probe.fit(material)
    held_out, (layer,) = probe.calibration_.probability(probe.inner_scores_), probe.layers()
    return PreAnswerProbe(
        layer=layer,
        coef=probe.coef_[0],
        intercept=float(probe.intercept_[0]),
        calibration=probe.calibration_,
        threshold=best_threshold(held_out, material.z),
        evaluation=evaluation,
        distance=learn_distance(material, states="question-only", layer=layer),
    )
