"""What the knockout does to a state, world by world.

In six worlds there are two groups, and nothing that is recorded of a sample tells which it is in:

- two-pathways: a share of the samples is pushed back by the full amount, the others not at all.
- to-the-prior: the belief of a share of the samples is forgotten, the others keep theirs.
- one-way: a share of the samples is displaced towards "wrong", whatever they believed.
- uneven-kinds: 85 % of one relation's samples are pushed back, and 15 % of the other's.
- unlabelled-kinds: two kinds of question that no label names; no analysis can tell them from two
  pathways.
- one-layer: two pathways at layer 1 alone, where the probe reads worse than elsewhere. A band that
  is chosen on clean states does not hold that layer, so that it is missed.

In all others there are no pathways:

- one-mechanism: every state shrinks towards the mean and is jolted: the same law for all.
- noise: every state is jolted, and that is all.
- no-effect: the knockout jolts states exactly as the neutral control does.
- shift: every state is displaced by the same amount along the belief: class collapse when strong.
- continuum: each belief is pushed back by its own amount, spread evenly (one flat hump).
- skewed: the amounts follow a gamma law, many small and a few large ones.
- forgetting: each belief loses a share of itself, any share being as likely as another.
- heavy-tails: all are pushed back alike, under noise with heavy tails (Student's t, 2 degrees).
- coin-toss: half of the samples are pushed back, drawn again at every pass.
- margin: beliefs of middling strength are pushed back, weaker and stronger ones not.
- templates: each of K templates of question has its own displacement.
- two-kinds: questions answered by yes or no are pushed back, the others not.
- interaction: one relation's long questions and the other's short ones are pushed back.
- popularity: samples about the popular half of the subjects are pushed back.
- finder-misses: all need the question, but the exact tokens of some were not found.
- blocks: questions come in blocks of ten about one entity, each block pushed by its own amount.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorscope.simulate.truth import Truth

JOLT = 0.1  # spread of what the neutral control does to a state, in every direction
MOVED = 2.0  # how far a control that is none moves a belief
BLOCK = 10  # questions of a block
HEAVY = 2  # degrees of freedom
LONG = 15  # tokens from which a question is long
OFTEN = 0.85  # of one relation is pushed back in uneven-kinds, of the other the rest
_HALF = ("two-pathways", "to-the-prior", "one-way", "one-layer", "two-kinds", "unlabelled-kinds")


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Who the samples are, [question] each."""

    dose: np.ndarray  # share of the full push; NaN where the belief or a coin decides it
    missed: np.ndarray  # bool: the knockout hides other tokens than those that carry the effect
    half: np.ndarray  # 1 or 0, drawn at random whatever the world
    relation: np.ndarray
    kind: np.ndarray
    entity: np.ndarray
    length: np.ndarray  # tokens of the prompt
    exact_tokens: np.ndarray
    log_popularity: np.ndarray  # natural logarithm


def draw_samples(truth: Truth, rng: np.random.Generator) -> Samples:
    """Draw the dose, labels and entity of each sample."""
    n, world, share = truth.samples, truth.world, truth.mixture
    half = rng.permutation((np.arange(n) < round(share * n)).astype(float))
    relation = rng.integers(0, truth.templates if world == "templates" else 2, n)
    length, popularity = rng.integers(5, 25, n), rng.normal(8, 2, n)
    exact = rng.integers(1, 5, n)
    entity = np.arange(n) // (BLOCK if world == "blocks" else 2)
    missed = rng.random(n) < (truth.missed if world == "finder-misses" else 0.0)
    dose = np.ones(n)
    if world in _HALF:
        dose = half
    elif world in ("margin", "coin-toss"):
        dose = np.full(n, np.nan)
    elif world == "templates":
        dose = np.linspace(0, 1, truth.templates)[relation]
    elif world == "continuum":
        reach = np.sqrt(3 * share * (1 - share))  # the mean and spread that two pathways would have
        dose = rng.uniform(share - reach, share + reach, n)
    elif world == "skewed":
        dose = rng.gamma(2, share / 2, n)
    elif world == "forgetting":
        dose = rng.uniform(0, 1, n)
    elif world == "heavy-tails":
        dose = np.full(n, share)
    elif world == "blocks":
        dose = rng.uniform(0, 1, entity.max() + 1)[entity]
    elif world == "interaction":
        dose = ((relation == 1) ^ (length >= LONG)).astype(float)
    elif world == "popularity":
        dose = (popularity > 8).astype(float)
    elif world == "uneven-kinds":
        dose = (rng.random(n) < np.where(relation == 1, OFTEN, 1 - OFTEN)).astype(float)
    return Samples(
        dose=dose,
        missed=missed,
        half=half,
        relation=np.array([f"relation {number}" for number in relation]),
        kind=np.where((half == 1) & (world == "two-kinds"), "yes/no", "name"),
        entity=entity.astype(str),
        length=length,
        exact_tokens=exact,
        log_popularity=popularity,
    )


def knocked_out(
    truth: Truth,
    rng: np.random.Generator,
    states: np.ndarray,
    *,
    belief: np.ndarray,
    axis: np.ndarray,
    push: np.ndarray,
    dose: np.ndarray,
) -> np.ndarray:
    """States [question, layer, width] after a cut.

    `belief` [question, layer] is the clean one along `axis` [layer, width], `push` [layer] the full
    push.
    """
    world = truth.world
    if world == "coin-toss":
        dose = (rng.random(len(states)) < 0.5).astype(float)
    jolt = _jolt(truth, rng, states.shape)
    if world in ("noise", "no-effect"):
        return states + jolt
    if world == "one-mechanism":
        # The stronger, the less of the clean state is left; the noise fills up what is lost.
        kept = np.exp(-push / 4)[:, None]
        return kept * states + np.sqrt(1 - kept**2 + truth.noise**2) * jolt / truth.noise
    return states + _away(world, belief, push, dose)[..., None] * axis + jolt


def neutral(
    truth: Truth, rng: np.random.Generator, clean: np.ndarray, *, belief: np.ndarray,
    axis: np.ndarray, rise: np.ndarray, half: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """States under the neutral control: jolted, or moved by a control that is none."""
    states = clean + JOLT * rng.standard_normal(clean.shape)
    moved = {
        "jolt": np.zeros_like(belief),
        "displaces": np.full_like(belief, MOVED),
        "surer": MOVED * np.sign(belief),
        "breaks": -MOVED * np.sign(belief) * half[:, None],
    }[truth.control]
    return states + (moved * rise)[..., None] * axis


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
