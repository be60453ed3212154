"""Detectors that fit in batches, against scikit-learn's fits one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from kit.detect_worlds import material
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from anchorscope.detect.inner_probes import STRENGTHS
from anchorscope.detect.kinds import make_method
from anchorscope.detect.material import Material
from anchorscope.probes.folds import MIN_PER_CLASS
from anchorscope.probes.linear_probe import DEFAULT_C
from anchorscope.stats.ranking import auroc

Line = Callable[[np.ndarray], np.ndarray]  # states [question, width] -> logits [question]
LAYERS = (3, 1, 2)


def world(n: int = 300, width: int = 14) -> Material:
    """Two pathways, reweighted states that tell them apart, and some answers without a knockout."""
    rng = np.random.default_rng(5)
    z, q = rng.permutation(np.arange(n) % 2), rng.random(n) < 0.5
    sign = (2.0 * z - 1)[:, None]
    clean = rng.standard_normal((n, 3, width)) * np.geomspace(0.2, 5, width)
    for layer, strength in enumerate((0.5, 1.0, 0.7)):
        scale = np.geomspace(0.2, 5, width)[:3] * strength
        clean[:, layer, :1] += np.where(q[:, None], 1.5 * sign * scale[0], 0.0)
        clean[:, layer, 1:2] += np.where(q[:, None], 0.0, 1.5 * sign * scale[1])
        clean[:, layer, 2] += np.where(q, 2.0, -2.0) * scale[2]
    knocked = clean.copy()
    knocked[q, :, 0] *= -4.0
    knocked[rng.choice(n, 9, replace=False)] = np.nan
    states = {"clean": clean, "knockout": knocked}
    for beta in (0.5, -0.5, 1.0, -1.0):
        good = np.where(q, beta > 0, beta < 0)[:, None]
        moved = clean + 0.3 * rng.standard_normal(clean.shape)
        moved[:, :, 3] += np.where(good, 3 * abs(beta) * sign * 0.4, 0.0)
        states[f"reweight{beta:+}"] = moved
    return material(z, states)


def line(x: np.ndarray, y: np.ndarray, C: float, *, balanced: bool) -> Line:
    """One probe by scikit-learn."""
    scaler = StandardScaler().fit(x.astype(np.float64))
    weight = "balanced" if balanced else None
    solver = LogisticRegression(
        C=C / len(y), class_weight=weight, solver="newton-cholesky", tol=1e-10, max_iter=1000
    ).fit(scaler.transform(x.astype(np.float64)), y)
    return lambda states: solver.decision_function(scaler.transform(states.astype(np.float64)))


def inner(
    made: Material, layer: int, C: float, states: str = "clean", read: str = ""
) -> np.ndarray:
    """Logits [question] of probes that never saw the question."""
    x, logits = made.layer(states, layer), np.empty(len(made))
    to_read = made.layer(read or states, layer)
    for fold in np.unique(made.inner):
        held = made.inner == fold
        known = held & np.isfinite(to_read).all(axis=1)
        logits[held] = np.nan
        logits[known] = line(x[~held], made.z[~held], C, balanced=True)(to_read[known])
    return logits


def pathways(clean: np.ndarray, knocked: np.ndarray) -> np.ndarray:
    """1.0 where the knockout turns the prediction, NaN where it was not read."""
    turned = (clean > 0) != (knocked > 0)
    return np.where(np.isnan(knocked), np.nan, turned.astype(float))


class Setting(NamedTuple):
    layer: int
    C: float
    beta: float = 0.0


def mop(made: Material, at: Setting, test: Material) -> np.ndarray:
    """The scores of the test answers by a mixture that learnt from `made`."""
    x, new = made.layer("clean", at.layer), test.layer("clean", at.layer)
    groups = pathways(inner(made, at.layer, at.C), inner(made, at.layer, at.C, read="knockout"))
    chance = []
    for group in (0.0, 1.0):
        rows = groups == group
        if min(np.sum(made.z[rows] == value) for value in (0, 1)) < MIN_PER_CLASS:
            rows = np.ones(len(made), dtype=bool)
        chance.append(expit(line(x[rows], made.z[rows], at.C, balanced=False)(new)))
    placed = np.isfinite(groups)
    gate = expit(line(x[placed], groups[placed], at.C, balanced=False)(new))
    return logit(np.clip(gate * chance[1] + (1 - gate) * chance[0], 1e-12, 1 - 1e-12))


def pr(made: Material, at: Setting, test: Material) -> np.ndarray:
    """The scores of the test answers by a probe on reweighted states of `made`."""

    def states(part: Material, is_q: np.ndarray) -> np.ndarray:
        if not at.beta:
            return part.layer("clean", at.layer)
        plus, minus = (part.layer(f"reweight{way * at.beta:+}", at.layer) for way in (1, -1))
        return np.where(is_q[:, None], plus, minus)

    x = made.layer("clean", at.layer)
    knocked = inner(made, at.layer, at.C, read="knockout")
    groups = pathways(inner(made, at.layer, at.C), knocked)
    placed, seen = np.isfinite(groups), np.ones(len(made), dtype=bool)
    for fold in np.unique(made.inner):
        held, rows = made.inner == fold, placed & (made.inner != fold)
        seen[held] = line(x[rows], groups[rows], at.C, balanced=False)(x[held]) > 0
    gate = line(x[placed], groups[placed], at.C, balanced=False)
    new = gate(test.layer("clean", at.layer)) > 0
    return line(states(made, seen), made.z, at.C, balanced=True)(states(test, new))


def held_out(made: Material, at: Setting, score) -> np.ndarray:
    """The scores of the training answers, each from a fit without its inner fold."""
    scores = np.empty(len(made))
    for held, rest, out in made.inner_parts():
        scores[held] = score(rest, at, out)
    return scores


def chosen(made: Material, score, betas: tuple[float, ...]) -> Setting:
    """One after the other: β, layer and strength, from where the single probe is best."""
    by_layer = {k: auroc(made.z, inner(made, k, DEFAULT_C)) for k in LAYERS}
    layers = sorted(by_layer, key=lambda k: -by_layer[k])
    by_C = {C: auroc(made.z, inner(made, layers[0], C)) for C in STRENGTHS}
    first = max(by_C, key=lambda C: by_C[C])
    at = Setting(layers[0], first)
    strengths = (first, *(C for C in STRENGTHS if first != C))
    for name, values in (("beta", betas), ("layer", layers), ("C", strengths)):
        tried = {v: auroc(made.z, held_out(made, at._replace(**{name: v}), score)) for v in values}
        at = at._replace(**{name: max(values, key=lambda v: tried[v])})
    return at


# How each detector scores, and the β it tries.
BY_HAND = {"mop": (mop, (0.0,)), "pr": (pr, (0.0, 0.5, 1.0))}


@pytest.fixture(scope="module")
def fitted():
    """All of them fitted on the same answers, as `detect eval` does: what one fits, others find."""
    made = world()
    train, test = made.take(np.arange(len(made)) % 4 != 0), made.take(np.arange(len(made)) % 4 == 0)
    return train, test, {name: make_method(name).fit(train) for name in BY_HAND}


@pytest.mark.parametrize("name", BY_HAND)
def test_choice_and_scores_are_those_of_single_fits(fitted, name):
    train, test, methods = fitted
    score, betas = BY_HAND[name]
    at = chosen(train, score, betas)
    found = methods[name]
    assert (found.layer_, found.C_, getattr(found, "beta_", 0.0)) == at
    inside = held_out(train, at, score)
    assert np.abs(found.inner_scores_ - inside).max() < 1e-3
    assert found.inner_auroc_ == pytest.approx(auroc(train.z, inside), abs=2e-4)
    assert np.abs(found.decision_function(test) - score(train, at, test)).max() < 1e-3


def test_reweighted_states_are_used(fitted):
    _, _, methods = fitted
    assert methods["pr"].beta_ > 0


def test_a_detector_alone_is_the_detector_among_others(fitted):
    train, test, methods = fitted
    for name in BY_HAND:
        alone = make_method(name).fit(train.take(np.arange(len(train)), seed=train.seed))
        apart = alone.decision_function(test) - methods[name].decision_function(test)
        assert np.abs(apart).max() < 1e-4
