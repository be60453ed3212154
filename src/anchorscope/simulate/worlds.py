"""Simulate hidden states with a known truth, to test what the analysis finds.

A state is [layer, width]. One direction per layer holds the model's belief about its own answer;
everything else is noise. The worlds differ only in what the knockout does to a state.

In six worlds there are two groups, and no recorded fact of a sample shows its group:

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
- noise: every state is jolted, with no other effect.
- no-effect: the knockout jolts states exactly as the neutral control does.
- shift: every state is displaced by the same amount along the belief: class collapse when strong.
- continuum: each belief is pushed back by its own amount, spread evenly (one flat hump).
- skewed: the amounts follow a gamma law, many small and a few large ones.
- heavy-pushes: the amounts follow a log-normal law, with a few that are very large.
- forgetting: each belief loses a share of itself, any share being as likely as another.
- heavy-tails: all are pushed back alike, under noise with heavy tails (Student's t, 2 degrees).
- coin-toss: half of the samples are pushed back, drawn again at every pass.
- margin: beliefs of middling strength are pushed back, weaker and stronger ones not.
- templates: each of K templates of question has its own displacement.
- two-kinds: questions answered by yes or no are pushed back, the others not.
- interaction: one relation's long questions and the other's short ones are pushed back.
- popularity: samples about the popular half of the subjects are pushed back.
- finder-misses: all need the question, but the exact tokens of some were not found.
- finder-by-kind: the same, and all that were not found are of one relation.
- blocks: questions come in blocks of ten about one entity, each block pushed by its own amount.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from anchorscope.errors import UserError, unknown
from anchorscope.records import Answer, Question, Sample, Span

# Worlds with two groups that no recorded fact of a sample explains, and worlds without.
TrueWorld = Literal[
    "two-pathways", "to-the-prior", "one-way", "uneven-kinds", "unlabelled-kinds", "one-layer",
]  # fmt: skip
NullWorld = Literal[
    "one-mechanism", "noise", "no-effect", "shift", "continuum", "skewed", "forgetting",
    "heavy-tails", "coin-toss", "margin", "templates", "two-kinds", "interaction", "popularity",
    "finder-misses", "finder-by-kind", "heavy-pushes", "blocks",
]  # fmt: skip
World = TrueWorld | NullWorld
TRUE: tuple[World, ...] = get_args(TrueWorld)
WORLDS: tuple[World, ...] = (*TRUE, *get_args(NullWorld))
Control = Literal["jolt", "displaces", "surer", "breaks", "unsure"]
CONTROLS: tuple[Control, ...] = get_args(Control)
AGAIN = 0.3  # spread of what other worked examples do to a state, in every direction
_ANSWERS = {"name": ("It", "Another"), "yes/no": ("yes", "no")}  # right and wrong, by kind
JOLT = 0.1  # spread of what the neutral control does to a state, in every direction
MOVED = 2.0  # how far a faulty neutral control moves a belief
BLOCK = 10  # questions of a block
HEAVY = 2  # degrees of freedom
LONG = 15  # tokens from which a question is long
OFTEN = 0.85  # share of one relation pushed back in uneven-kinds; of the other, 1 - OFTEN
_HALF = ("two-pathways", "to-the-prior", "one-way", "one-layer", "two-kinds", "unlabelled-kinds")


def _field(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The parameters of a simulated world: its effect, the share of samples with it, its noise."""

    world: World = _field("two-pathways", "one-mechanism, two-pathways, shift, continuum, ...")
    samples: int = _field(400, "Questions, half of them answered wrong.")
    layers: int = _field(12, "Layers of the simulated model.")
    width: int = _field(32, "Width of a state.")
    strength: float = _field(4.0, "How far a belief is pushed, in its standard deviations.")
    mixture: float = _field(0.5, "Share of the samples that are pushed.")
    noise: float = _field(0.5, "Standard deviation of the knockout's noise in every direction.")
    belief: float = _field(
        1.5, "Distance of each class's mean belief from the middle; a weak probe below 0.5."
    )
    templates: int = _field(4, "Relations in the world 'templates'.")
    missed: float = _field(0.3, "Share of exact tokens not found, in the worlds 'finder-…'.")
    control: Control = _field(
        "jolt", "What the neutral control does: jolt, displaces, surer, breaks, unsure."
    )
    seed: int = _field(0, "Random seed.")

    def __post_init__(self) -> None:
        for name, accepted in (("world", WORLDS), ("control", CONTROLS)):
            if getattr(self, name) not in accepted:
                raise unknown(name, getattr(self, name), accepted)
        for name, least in (("samples", 60), ("layers", 1), ("width", 2), ("templates", 2)):
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}. Accepted: {least} or more.")
        for name in ("mixture", "missed"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}. Accepted: between 0 and 1.")
        if not (self.strength >= 0 and self.noise > 0):
            raise UserError(
                f"strength is {self.strength} and noise {self.noise}. Accepted: strength of 0 or "
                "more, noise above 0."
            )


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The properties of the samples, [question] each."""

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
    misses = {"finder-misses": truth.missed, "finder-by-kind": 2 * truth.missed * relation}
    missed = rng.random(n) < misses.get(world, 0.0)
    reach = np.sqrt(3 * share * (1 - share))  # the mean and spread that two pathways would have
    doses = {
        **dict.fromkeys(_HALF, lambda: half),
        **dict.fromkeys(("margin", "coin-toss"), lambda: np.full(n, np.nan)),
        "templates": lambda: np.linspace(0, 1, truth.templates)[relation],
        "continuum": lambda: rng.uniform(share - reach, share + reach, n),
        "skewed": lambda: rng.gamma(2, share / 2, n),
        "heavy-pushes": lambda: share * rng.lognormal(-0.5, 1.0, n),
        "forgetting": lambda: rng.uniform(0, 1, n),
        "heavy-tails": lambda: np.full(n, share),
        "blocks": lambda: rng.uniform(0, 1, entity.max() + 1)[entity],
        "interaction": lambda: (relation == 1) ^ (length >= LONG),
        "popularity": lambda: popularity > 8,
        "uneven-kinds": lambda: rng.random(n) < np.where(relation == 1, OFTEN, 1 - OFTEN),
    }
    dose = np.asarray(doses.get(world, lambda: np.ones(n))(), dtype=np.float64)
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
    """Apply the knockout to states [question, layer, width].

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


def _away(world: str, belief: np.ndarray, push: np.ndarray, dose: np.ndarray) -> np.ndarray:
    """How far the knockout moves each belief, [question, layer]."""
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


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """States of every intervention [question, layer, width], and the truth behind them."""

    states: dict[str, np.ndarray]
    z: np.ndarray  # [question], 1 = wrong
    samples: Samples


def simulate_states(truth: Truth) -> Simulated:
    """Simulate the states of a world; the same truth gives the same states."""
    rng = np.random.default_rng(truth.seed)
    n, layers, width = truth.samples, truth.layers, truth.width
    z = rng.permutation(np.arange(n) % 2)
    axis = rng.standard_normal((layers, width))
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    rise = np.minimum(1.0, np.arange(1, layers + 1) / max(1, layers // 2))  # full from the middle
    if truth.world == "one-layer":
        rise[0] = 0.5 * rise[-1]
    lasting = rng.standard_normal(n)  # the part of a belief's noise that all layers share
    shape = (n, layers, width)
    clean = 0.6 * rng.standard_normal(shape) + 0.8 * np.einsum("n,lw->nlw", lasting, axis)
    across = rng.standard_normal(shape)
    across -= np.einsum("nlw,lw->nl", across, axis)[..., None] * axis
    clean += 0.8 * across  # so that every direction has spread 1
    clean += np.einsum("n,l,lw->nlw", truth.belief * (2 * z - 1.0), rise, axis)
    retest = clean + AGAIN * rng.standard_normal(shape)
    samples = draw_samples(truth, rng)
    belief = np.einsum("nlw,lw->nl", clean, axis)
    found = np.where(samples.missed, 0.0, samples.dose)

    def cut(states: np.ndarray, strength: float, dose: np.ndarray) -> np.ndarray:
        push = strength * truth.strength * rise
        return knocked_out(truth, rng, states, belief=belief, axis=axis, push=push, dose=dose)

    def neutral() -> np.ndarray:
        """Jolt the states, and move their beliefs where the neutral control is faulty."""
        jolted, margin = clean + JOLT * rng.standard_normal(shape), np.abs(belief)
        moved = {
            "jolt": np.zeros_like(belief),
            "displaces": np.full_like(belief, MOVED),
            "surer": MOVED * np.sign(belief),
            "breaks": -MOVED * np.sign(belief) * samples.half[:, None],
            "unsure": -MOVED * np.sign(belief) * (margin < np.median(margin, axis=0)),
        }[truth.control]
        return jolted + (moved * rise)[..., None] * axis

    states = {
        "clean": clean,
        "retest": retest,
        "knockout": cut(clean, 1.0, found),
        "retest-knockout": cut(retest, 1.0, found),
        "question": cut(clean, 1.2, samples.dose),
        "neutral": neutral(),
        "content": clean + JOLT * rng.standard_normal(shape),
        "answer-only": cut(clean, 1.3, samples.dose),
    }
    return Simulated(
        states={name: values.astype(np.float32) for name, values in states.items()},
        z=z,
        samples=samples,
    )


def samples_of(truth: Truth, world: Simulated) -> list[Sample]:
    """Make the samples of a world: placeholder questions and answers, with all labels."""
    return [_sample(truth, world, number) for number in range(truth.samples)]


def _sample(truth: Truth, world: Simulated, number: int) -> Sample:
    drawn, wrong = world.samples, bool(world.z[number])
    subject = f"thing {drawn.entity[number]}"
    text = f"What is {subject}, asked as number {number}?"
    start, length = text.index(subject), int(drawn.length[number])
    answers = _ANSWERS[str(drawn.kind[number])]
    return Sample(
        question=Question(
            id=f"simulated:{truth.world}:{number}",
            dataset="simulated",
            text=text,
            answers=(answers[0],),
            subjects=(subject,),
            relation=str(drawn.relation[number]),
            popularity=float(np.exp(drawn.log_popularity[number])),
            entity=subject,
        ),
        answer=Answer(
            id=f"simulated:{truth.world}:{number}",
            text=answers[wrong],
            token_ids=(1,),
            log_probs=(-0.5,),
            first_entropy=1.0,
            finished=True,
        ),
        verdict="wrong" if wrong else "right",
        finder="given",
        spans=(Span(start, start + len(subject)),),
        answer_span=Span(0, len(answers[wrong])),
        prompt_ids=tuple(range(length)),
        question_tokens=tuple(range(1, length)),
        exact_question=tuple(range(1, 1 + int(drawn.exact_tokens[number]))),
        exact_answer=(length,),
    )
