"""Probes inside the training material: cross-fitted logits, and the layer and strength they favour.

Every detector that reads states asks the same questions of the same training answers, so the
answers are kept in the material's memo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from anchorscope.detect.material import INNER_FOLDS, Material
from anchorscope.probes.each import each
from anchorscope.probes.metrics import auroc
from anchorscope.probes.probe import DEFAULT_C, LinearProbe

STRENGTHS = (0.0003, DEFAULT_C, 0.03, 0.3)
# Neighbouring layers read nearly alike: every second one first, then the best one's neighbours.
STEP = 2


class Choice(NamedTuple):
    """The layer (from 1) and strength that held-out training answers favour."""

    layer: int
    C: float
    auroc: float  # by layer and C chosen, on held-out training answers


def choose(material: Material, *, states: str = "clean") -> Choice:
    """The layer and C with the highest inner AUROC."""
    return _once(material, ("choice", states), lambda: _choose(material, states))


def layer_scores(material: Material, *, states: str = "clean") -> dict[int, float]:
    """Inner AUROC of the layers that were looked at, by layer."""

    def look() -> dict[int, float]:
        layers = material.bank.layers
        first = list(range(layers, 0, -STEP))
        found = dict(zip(first, _aurocs(material, states, first), strict=True))
        best = max(found, key=lambda layer: found[layer])
        near = [k for k in (best - 1, best + 1) if 1 <= k <= layers and k not in found]
        return found | dict(zip(near, _aurocs(material, states, near), strict=True))

    return _once(material, ("layers", states), look)


def inner_logits(
    material: Material, layer: int, *, C: float = DEFAULT_C, states: str = "clean"
) -> dict[str, np.ndarray]:
    """Logits [question] of probes that never saw the question; "clean" as trained on, and
    "knockout" where there are such states. `states` is what the probes learn from.
    """
    key = _logits_key(states, layer, C)
    return _once(material, key, lambda: _fit_inner(material, layer, C, states))


def _choose(material: Material, states: str) -> Choice:
    found = layer_scores(material, states=states)
    layer = max(found, key=lambda k: found[k])
    by_c = {
        C: auroc(material.z, inner_logits(material, layer, C=C, states=states)["clean"])
        for C in STRENGTHS
    }
    C = max(by_c, key=lambda c: by_c[c])
    return Choice(layer, C, by_c[C])


def _aurocs(material: Material, states: str, layers: Sequence[int]) -> list[float]:
    """The inner AUROC of these layers; their logits go to the memo."""
    found = each(lambda layer: _fit_inner(material, layer, DEFAULT_C, states), layers)
    for layer, logits in zip(layers, found, strict=True):
        material.memo[_logits_key(states, layer, DEFAULT_C)] = logits
    return [auroc(material.z, logits["clean"]) for logits in found]


def _fit_inner(material: Material, layer: int, C: float, states: str) -> dict[str, np.ndarray]:
    x = material.layer(states, layer).astype(np.float64)
    other = None
    if states == "clean" and material.has("knockout"):
        other = material.layer("knockout", layer).astype(np.float64)
    read = {"clean": np.full(len(material), np.nan)}
    if other is not None:
        read["knockout"] = np.full(len(material), np.nan)
    for fold in range(INNER_FOLDS):
        held = material.inner == fold
        probe = LinearProbe(C=C).fit(x[~held], material.z[~held])
        read["clean"][held] = probe.decision_function(x[held])
        if other is not None:
            weights = probe.coef_[0].astype(np.float64)
            read["knockout"][held] = other[held] @ weights + probe.intercept_[0]
    return read


def _logits_key(states: str, layer: int, C: float) -> tuple:
    return ("logits", states, layer, C)


def _once(material: Material, key: tuple, make: Callable):
    if key not in material.memo:
        material.memo[key] = make()
    return material.memo[key]
