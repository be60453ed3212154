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

from anchorscope.detect.inner_probes import STRENGTHS, clusters
from anchorscope.detect.kinds import make_method
from anchorscope.detect.kinds.mixture_of_probes import random_gate
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
    for kind, steps in (("reweight", (0.5, 1.0)), ("rescale", (1.0,))):
        for beta in (way * step for step in steps for way in (1, -1)):
            good = np.where(q, beta > 0, beta < 0)[:, None]
            moved = clean + 0.3 * rng.standard_normal(clean.shape)
            moved[:, :, 3] += np.where(good, 3 * abs(beta) * sign * 0.4, 0.0)
            states[f"{kind}{beta:+}"] = moved
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


def mop(made: Material, at: Setting, test: Material, gate: str, experts: str) -> np.ndarray:
    """The scores of the test answers by a mixture that learnt from `made`."""
    x = made.layer("clean", at.layer)
    if experts == "cluster":
        groups = clusters(x, seed=0)
    else:
        knocked = inner(made, at.layer, at.C, read="knockout")
        groups = pathways(inner(made, at.layer, at.C), knocked)
    new = test.layer("clean", at.layer)
    chance = []
    for group in (0.0, 1.0):
        rows = groups == group
        if min(np.sum(made.z[rows] == value) for value in (0, 1)) < MIN_PER_CLASS:
            rows = np.ones(len(made), dtype=bool)
        chance.append(expit(line(x[rows], made.z[rows], at.C, balanced=False)(new)))
    placed = np.isfinite(groups)
    share = groups[placed].mean()
    if gate == "learned":
        g = expit(line(x[placed], groups[placed], at.C, balanced=False)(new))
    elif gate == "random":
        g = random_gate(test.ids, share, seed=0)
    else:
        reader, cut = line(x, made.z, at.C, balanced=True), test.layer("knockout", at.layer)
        read = np.full(len(test), np.nan)
        known = np.isfinite(cut).all(axis=1)
        read[known] = reader(cut[known])
        turned = pathways(reader(new), read)
        g = np.where(np.isnan(turned), share, turned)
    return logit(np.clip(g * chance[1] + (1 - g) * chance[0], 1e-12, 1 - 1e-12))


def pr(made: Material, at: Setting, test: Material, kind: str, sign: str) -> np.ndarray:
    """The scores of the test answers by a probe on reweighted states of `made`."""

    def states(of: Material, is_q: np.ndarray) -> np.ndarray:
        if not at.beta:
            return of.layer("clean", at.layer)
        plus, minus = (of.layer(f"{kind}{way * at.beta:+}", at.layer) for way in (1, -1))
        return np.where(is_q[:, None], plus, minus)

    seen, new = np.ones(len(made), dtype=bool), np.ones(len(test), dtype=bool)
    if sign == "pathway":
        x = made.layer("clean", at.layer)
        knocked = inner(made, at.layer, at.C, read="knockout")
        groups = pathways(inner(made, at.layer, at.C), knocked)
        placed = np.isfinite(groups)
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


def by_hand(name: str):
    """How the detector scores, and the β it tries."""
    if name.startswith("mop"):
        gate = {"mop-random-gate": "random", "mop-oracle": "oracle"}.get(name, "learned")
        experts = "cluster" if name == "mop-no-labels" else "pathway"
        return lambda made, at, test: mop(made, at, test, gate, experts), (0.0,)
    kind = "rescale" if name == "pr-scaled" else "reweight"
    sign = "fixed" if name == "pr-fixed" else "pathway"
    steps = (1.0,) if kind == "rescale" else (0.5, 1.0)
    betas = (0.0, *steps) if sign == "pathway" else (0.0, *steps, *(-step for step in steps))
    return lambda made, at, test: pr(made, at, test, kind, sign), betas


NAMES = ("mop", "mop-random-gate", "mop-no-labels", "mop-oracle", "pr", "pr-fixed", "pr-scaled")


@pytest.fixture(scope="module")
def fitted():
    """All of them fitted on the same answers, as `detect eval` does: what one fits, others find."""
    made = world()
    train, test = made.take(np.arange(len(made)) % 4 != 0), made.take(np.arange(len(made)) % 4 == 0)
    return train, test, {name: make_method(name).fit(train) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_choice_and_scores_are_those_of_single_fits(fitted, name):
    train, test, methods = fitted
    score, betas = by_hand(name)
    at = chosen(train, score, betas)
    found = methods[name]
    assert (found.layer_, found.C_, getattr(found, "beta_", 0.0)) == at
    inside = held_out(train, at, score)
    assert np.abs(found.inner_scores_ - inside).max() < 1e-3
    assert found.inner_auroc_ == pytest.approx(auroc(train.z, inside), abs=2e-4)
    assert np.abs(found.decision_function(test) - score(train, at, test)).max() < 1e-3


def test_reweighted_states_are_used(fitted):
    _, _, methods = fitted
    assert methods["pr"].beta_ > 0 and methods["pr-scaled"].beta_ > 0


def test_a_detector_alone_is_the_detector_among_others(fitted):
    train, test, methods = fitted
    for name in ("mop-oracle", "pr"):
        alone = make_method(name).fit(train.take(np.arange(len(train)), seed=train.seed))
        apart = alone.decision_function(test) - methods[name].decision_function(test)
        assert np.abs(apart).max() < 1e-4
