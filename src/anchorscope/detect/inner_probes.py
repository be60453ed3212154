"""Probes cross-fitted inside the training material, to choose layer, strength and pathway groups.

Detectors that read states need the same probes of the same training answers, so the fits are kept
in the material's memo.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorscope.detect.material import Material
from anchorscope.errors import UserError
from anchorscope.parallel import in_parallel
from anchorscope.pathways.effects import flips
from anchorscope.probes.cross_fit import FoldTask, fit_fold_tasks, task_logits
from anchorscope.probes.linear_probe import DEFAULT_C, LinearProbe
from anchorscope.stats.ranking import auroc

STRENGTHS = (DEFAULT_C / 10, DEFAULT_C, 10 * DEFAULT_C, 100 * DEFAULT_C)
# Neighbouring layers are nearly equal: every second one is tried, then the best one's neighbours.
STEP = 2


def choose(material: Material, *, states: str = "clean") -> tuple[int, float]:
    """The layer (from 1) and strength C with the highest inner AUROC."""

    def find() -> tuple[int, float]:
        scores = layer_scores(material, states=states)
        layer = max(scores, key=lambda k: scores[k])
        fits = _fit_inner(material, layer, STRENGTHS, states)
        return layer, max(fits, key=lambda C: auroc(material.z, fits[C]["clean"]))

    return material.once(("choice", states), find)


def layer_scores(material: Material, *, states: str = "clean") -> dict[int, float]:
    """Inner AUROC of the layers that were tried, by layer."""

    def tried(layers: Sequence[int]) -> dict[int, float]:
        fits = in_parallel(lambda layer: _fit_inner(material, layer, [DEFAULT_C], states), layers)
        for layer, fit in zip(layers, fits, strict=True):
            material.memo["inner", states, layer, DEFAULT_C] = fit[DEFAULT_C]
        areas = [auroc(material.z, fit[DEFAULT_C]["clean"]) for fit in fits]
        return dict(zip(layers, areas, strict=True))

    def find() -> dict[int, float]:
        layers = material.layers(states)
        scores = tried(range(layers, 0, -STEP))
        best = max(scores, key=lambda layer: scores[layer])
        return scores | tried([k for k in (best - 1, best + 1) if 1 <= k <= layers])

    return material.once(("layers", states), find)


def inner_logits(
    material: Material, layer: int, *, C: float = DEFAULT_C, states: str = "clean"
) -> dict[str, np.ndarray]:
    """Held-out logits [question] of inner probes trained on `states`, under the key "clean".

    Probes of clean states also have the key "knockout", if the run has such states.
    """
    return _fit_inner(material, layer, [C], states)[C]


def whole_probe(
    material: Material, layer: int, *, C: float, states: str = "clean"
) -> tuple[np.ndarray, float]:
    """Coefficients [width] and intercept of a probe trained on all answers."""

    def fit() -> tuple[np.ndarray, float]:
        probe = LinearProbe(C=C).fit(material.layer(states, layer), material.z)
        return probe.coef_[0], float(probe.intercept_[0])

    return material.once(("probe", states, layer, C), fit)


def pathway_groups(material: Material, layer: int, *, C: float) -> np.ndarray:
    """The pathway of each answer, [question]: 1.0 for Q, 0.0 for A, NaN without a knockout state.

    It comes from held-out probes within the training material.
    """
    logits = inner_logits(material, layer, C=C)
    if "knockout" not in logits:
        raise UserError("Pathways need states under the knockout, and this run has none.")
    return flips(logits["clean"], logits["knockout"])


def _fit_inner(
    material: Material, layer: int, strengths: Sequence[float], states: str
) -> dict[float, dict[str, np.ndarray]]:
    """Held-out logits of the inner probes, by strength and states; all are fitted at once."""
    new = [C for C in strengths if ("inner", states, layer, C) not in material.memo]
    if new:
        every = np.arange(len(material))
        tasks = [FoldTask(every, material.z, material.inner, C) for C in new]
        x = material.layer(states, layer).astype(np.float64)
        probes = fit_fold_tasks(x, tasks)
        read = {"clean": task_logits(probes, tasks, x)}
        if any(np.isnan(logits).any() for logits in read["clean"]):
            raise UserError("All answers of some inner folds are of one class; a probe needs both.")
        if states == "clean" and material.has("knockout"):
            read["knockout"] = task_logits(probes, tasks, material.layer("knockout", layer))
        for place, C in enumerate(new):
            own = {name: by_task[place] for name, by_task in read.items()}
            material.memo["inner", states, layer, C] = own
    return {C: material.memo["inner", states, layer, C] for C in strengths}
