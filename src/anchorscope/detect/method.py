"""The base class of detectors, and the probes that they choose layer and strength by.

Probes are cross-fitted inside the training material. Detectors that read states need the same ones
of the same answers, so the fits are kept in the material's memo.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from sklearn.base import BaseEstimator

from anchorscope.detect.calibration import Isotonic, Platt
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


class Method(BaseEstimator):
    """A detector in scikit-learn's style whose samples are a `Material`.

    A subclass defines how it chooses (`_choose`), learns (`_learn`) and scores
    (`decision_function`). Choosing and calibrating see the training material alone.
    """

    name: str = ""
    learns: bool = True  # False: the score is the same whatever it was fitted on
    text_only: bool = False  # a control that never looks into the model
    reads_tokens: bool = False  # needs the log-probability of every answer token
    single: bool = False  # a baseline that other detectors are compared with out of domain
    extra_passes: float = 0.0  # forward passes besides those that generated the answer
    saved: tuple[str, ...] = ()  # fitted arrays and numbers that a deployed detector keeps
    samples_: int = 0  # answers that it samples to each question that it scores
    temperature_: float = 1.0  # at which they are sampled
    short_name: str = ""  # its name in `METHODS`
    calibration_: Platt | Isotonic
    inner_auroc_: float  # on held-out training answers
    inner_scores_: np.ndarray  # [question], of the training answers, held out

    def lacks(self, material: Material) -> str:
        """The reason why the detector cannot use the material; empty if it can."""
        unknown = self.reads_tokens and any(
            not text.log_probs or np.isnan(text.log_probs).any() for text in material.texts
        )
        return "how likely the tokens were is not known" if unknown else ""

    def fit(self, material: Material, y: None = None) -> Method:
        """Choose, calibrate and train the detector on the material."""
        if reason := self.lacks(material):
            raise UserError(f"The detector '{self.name}' cannot be used here: {reason}.")
        self._choose(material)
        self.inner_scores_ = self._inner_scores(material)
        self.inner_auroc_ = auroc(material.z, self.inner_scores_)
        self.calibration_ = Platt.fit(self.inner_scores_, material.z)
        self._learn(material)
        return self

    def decision_function(self, material: Material) -> np.ndarray:
        """The score of each answer, [question]; higher means more likely wrong."""
        raise NotImplementedError

    def layers(self) -> tuple[int, ...]:
        """The layers (from 1) whose clean states a fitted detector reads."""
        return ()

    def cost(self, material: Material) -> tuple[float, float]:
        """The extra forward passes per answer, and their milliseconds (0 if not measured)."""
        return self.extra_passes, 0.0

    def chosen(self) -> str:
        """The hyperparameters chosen on the training answers, as text: "layer 17, C 3.0"."""
        return ""

    def arrays(self) -> dict[str, np.ndarray]:
        """The fitted arrays by name, ready for safetensors."""
        return {name.rstrip("_"): np.asarray(getattr(self, name)) for name in self.saved}

    def restore(self, arrays: dict[str, np.ndarray]) -> Method:
        """Restore a fitted detector from `arrays`."""
        for name in self.saved:
            array = arrays[name.rstrip("_")]
            setattr(self, name, array if array.ndim else array.item())
        return self

    def _choose(self, material: Material) -> None:
        """Choose hyperparameters (layer, C, β) on the training material."""

    def _learn(self, material: Material) -> None:
        """Train on the material with the chosen hyperparameters."""

    def _inner_scores(self, material: Material) -> np.ndarray:
        """Held-out scores of the training answers by inner cross-validation, [question]."""
        if not self.learns:
            return self.decision_function(material)
        scores = np.full(len(material), np.nan)
        for held, rest, out in material.inner_parts():
            part = copy.copy(self)
            part._learn(rest)
            scores[held] = part.decision_function(out)
        return scores


# --- Probes inside the training material ---


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
