"""Probes inside the training material: layer, strength and groups that held-out answers favour.

Every detector that reads states asks the same questions of the same training answers, so the
answers are kept in the material's memo.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from anchorscope.detect.material import Material
from anchorscope.errors import UserError
from anchorscope.parallel import in_parallel
from anchorscope.pathways.effects import flips
from anchorscope.probes.fold_probes import fit_fold_probes
from anchorscope.probes.linear_probe import DEFAULT_C
from anchorscope.stats.ranking import auroc

STRENGTHS = (DEFAULT_C / 10, DEFAULT_C, 10 * DEFAULT_C, 100 * DEFAULT_C)
# Neighbouring layers read nearly alike: every second one first, then the best one's neighbours.
STEP = 2
_TRIED = 3  # layers
_DIRECTIONS = 8  # of largest spread: distances in hundreds of directions are all alike


class Choice(NamedTuple):
    """The layer (from 1) and strength that held-out training answers favour."""

    layer: int
    C: float
    auroc: float  # by layer and C chosen, on held-out training answers


def choose(material: Material, *, states: str = "clean") -> Choice:
    """The layer and C with the highest inner AUROC."""
    return material.once(("choice", states), lambda: _choose(material, states))


def layer_scores(material: Material, *, states: str = "clean") -> dict[int, float]:
    """Inner AUROC of the layers that were looked at, by layer."""

    def look() -> dict[int, float]:
        layers = material.bank.layers
        first = list(range(layers, 0, -STEP))
        scores = dict(zip(first, _aurocs(material, states, first), strict=True))
        best = max(scores, key=lambda layer: scores[layer])
        near = [k for k in (best - 1, best + 1) if 1 <= k <= layers and k not in scores]
        return scores | dict(zip(near, _aurocs(material, states, near), strict=True))

    return material.once(("layers", states), look)


def best_layers(material: Material) -> tuple[int, ...]:
    """The layers that a detector of another kind than the probe tries, the probe's own first."""
    scores = layer_scores(material)
    return tuple(sorted(scores, key=lambda layer: -scores[layer])[:_TRIED])


def strengths_from(C: float) -> tuple[float, ...]:
    """All strengths, this one first: of equals the first is taken."""
    return (C, *(other for other in STRENGTHS if other != C))


def inner_logits(
    material: Material, layer: int, *, C: float = DEFAULT_C, states: str = "clean"
) -> dict[str, np.ndarray]:
    """Logits [question] of probes that never saw the question; "clean" as trained on, and
    "knockout" where there are such states. `states` is what the probes learn from.
    """
    key = _logits_key(states, layer, C)
    return material.once(key, lambda: _fit_inner(material, layer, C, states))


def _choose(material: Material, states: str) -> Choice:
    scores = layer_scores(material, states=states)
    layer = max(scores, key=lambda k: scores[k])
    by_c = {
        C: auroc(material.z, inner_logits(material, layer, C=C, states=states)["clean"])
        for C in STRENGTHS
    }
    C = max(by_c, key=lambda c: by_c[c])
    return Choice(layer, C, by_c[C])


def _aurocs(material: Material, states: str, layers: Sequence[int]) -> list[float]:
    """The inner AUROC of these layers; their logits go to the memo."""
    logits_by_layer = in_parallel(
        lambda layer: _fit_inner(material, layer, DEFAULT_C, states), layers
    )
    for layer, logits in zip(layers, logits_by_layer, strict=True):
        material.memo[_logits_key(states, layer, DEFAULT_C)] = logits
    return [auroc(material.z, logits["clean"]) for logits in logits_by_layer]


def _fit_inner(material: Material, layer: int, C: float, states: str) -> dict[str, np.ndarray]:
    x = material.layer(states, layer)
    probes = fit_fold_probes(x, material.z, material.inner, C=C)
    read = {"clean": probes.logits(x)}
    if np.isnan(read["clean"]).any():
        raise UserError("All answers of some inner folds are of one class; a probe needs both.")
    if states == "clean" and material.has("knockout"):
        read["knockout"] = probes.logits(material.layer("knockout", layer))
    return read


def _logits_key(states: str, layer: int, C: float) -> tuple:
    return ("logits", states, layer, C)


def pathway_groups(material: Material, layer: int, *, C: float) -> np.ndarray:
    """1.0 for Q, 0.0 for A, [question]; NaN where there is no knocked-out state.

    From probes that never saw the question, and from the training material alone.
    """
    logits = inner_logits(material, layer, C=C)
    if "knockout" not in logits:
        raise UserError("Pathways need states under the knockout, and this run has none.")
    return flips(logits["clean"], logits["knockout"])


def clusters(x: np.ndarray, *, seed: int) -> np.ndarray:
    """Two groups of states [question, width] by k-means, 0.0 and 1.0, [question]."""
    scaled = StandardScaler().fit_transform(np.asarray(x, dtype=np.float64))
    count = min(_DIRECTIONS, *scaled.shape)
    points = PCA(n_components=count, random_state=seed).fit_transform(scaled)
    labels: Any = KMeans(n_clusters=2, n_init=cast(Any, 4), random_state=seed).fit_predict(points)
    return labels.astype(np.float64)
