"""What the knockout does to a state, world by world.

True are four worlds: some samples are Q and the others A.

- two-pathways: a share of the samples is pushed back by the full amount, the others not at all.
- to-the-prior: the belief of a share of the samples is forgotten, the others keep theirs.
- one-way: a share of the samples is displaced towards "wrong", whatever they believed.
- one-layer: two pathways at layer 1 alone, where the probe reads worse than elsewhere.

In all others there are no pathways:

- one-mechanism: every state shrinks towards the mean and is jolted: the same law for all.
- noise: every state is jolted, and that is all.
- no-effect: the knockout jolts states exactly as the neutral control does.
- shift: every state is displaced by the same amount along the belief: class collapse when strong.
- continuum: each belief is pushed back by its own amount, spread evenly (one flat hump).
- skewed: the amounts follow a gamma law, many small and a few large ones.
- forgetting: each belief loses a share of itself, any share being as likely as another.
- heavy-tails: all are pushed back alike, under noise with heavy tails (Student's t, 2 degrees).
- templates: each of K templates of question has its own displacement.
- two-kinds: questions answered by yes or no are pushed back, the others not.
- margin: beliefs of middling strength are pushed back, weaker and stronger ones not.
- blocks: questions come in blocks of ten about one entity, each block pushed by its own amount.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anchorscope.simulate.truth import Truth

JOLT = 0.1  # spread of what the neutral control does to a state, in every direction
BLOCK = 10  # questions of a block
HEAVY = 2  # degrees of freedom


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Who the samples are, [question] each."""

    dose: np.ndarray  # share of the full push that each takes; NaN where the belief decides it
    relation: np.ndarray
    kind: np.ndarray
    entity: np.ndarray


def draw_samples(truth: Truth, rng: np.random.Generator) -> Samples:
    """Dose, template, kind of answer and entity of each sample."""
    n, share = truth.samples, truth.mixture
    half = rng.permutation((np.arange(n) < round(share * n)).astype(float))
    relation, kind = np.full(n, "relation 0"), np.full(n, "name")
    entity = np.arange(n) // (BLOCK if truth.world == "blocks" else 2)
    template = rng.integers(0, truth.templates, n)
    reach = np.sqrt(3 * share * (1 - share))  # the mean and spread that two pathways would have
    doses: dict[str, Callable[[], np.ndarray]] = {
        "two-pathways": lambda: half,
        "to-the-prior": lambda: half,
        "one-way": lambda: half,
        "one-layer": lambda: half,
        "two-kinds": lambda: half,
        "continuum": lambda: rng.uniform(share - reach, share + reach, n),
        "skewed": lambda: rng.gamma(2, share / 2, n),
        "forgetting": lambda: rng.uniform(0, 1, n),
        "heavy-tails": lambda: np.full(n, share),
        "templates": lambda: np.linspace(0, 1, truth.templates)[template],
        "margin": lambda: np.full(n, np.nan),
        "blocks": lambda: rng.uniform(0, 1, entity.max() + 1)[entity],
    }
    dose = doses.get(truth.world, lambda: np.ones(n))()
    if truth.world == "templates":
        relation = np.array([f"relation {number}" for number in template])
    if truth.world == "two-kinds":
        kind = np.where(half == 1, "yes/no", "name")
    return Samples(dose=dose, relation=relation, kind=kind, entity=entity.astype(str))


def knocked_out(
    truth: Truth,
    rng: np.random.Generator,
    clean: np.ndarray,
    axis: np.ndarray,
    push: np.ndarray,
    samples: Samples,
) -> np.ndarray:
    """States under an intervention, [question, layer, width]; `push` [layer] is the full one."""
    world = truth.world
    jolt = _jolt(truth, rng, clean.shape)
    if world in ("noise", "no-effect"):
        return clean + jolt
    if world == "one-mechanism":
        # The stronger, the less of the clean state is left; the noise fills up what is lost.
        kept = np.exp(-push / 4)[:, None]
        return kept * clean + np.sqrt(1 - kept**2 + truth.noise**2) * jolt / truth.noise
    belief = np.einsum("nlw,lw->nl", clean, axis)
    along = _away(world, belief, push, samples.dose)
    return clean + along[..., None] * axis + jolt


def _away(world: str, belief: np.ndarray, push: np.ndarray, dose: np.ndarray) -> np.ndarray:
    """How far each belief moves, [question, layer]."""
    if world in ("shift", "templates"):
        return -push * dose[:, None]
    if world == "one-way":
        return push * dose[:, None]
    if world in ("to-the-prior", "forgetting"):
        return -np.minimum(push, 1.0) * dose[:, None] * belief
    if world == "margin":
        margin = np.abs(belief)
        low, high = np.quantile(margin, [1 / 3, 2 / 3], axis=0)
        return -np.sign(belief) * push * ((margin > low) & (margin < high))
    if world == "one-layer":
        push = np.where(np.arange(len(push)) == 0, push.max(), 0.0)
    return -np.sign(belief) * push * dose[:, None]


def _jolt(truth: Truth, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    if truth.world == "heavy-tails":
        return truth.noise * rng.standard_t(HEAVY, shape)
    return (JOLT if truth.world == "no-effect" else truth.noise) * rng.standard_normal(shape)
