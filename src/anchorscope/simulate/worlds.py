"""Made-up states with a known truth, to see what each way of reading makes of it.

A state is [layer, width]. Along one direction per layer lies the model's belief about its own
answer; everything else is noise. The worlds differ only in what the knockout does:

- one-mechanism: every state shrinks towards the mean and is jolted: the same law for all.
- shift: every state is displaced by the same amount along the belief: class collapse when strong.
- continuum: each belief is pushed back by its own amount, spread evenly (one flat hump).
- two-pathways: a share of the samples is pushed back by the full amount, the others not at all.
- no-effect: the knockout jolts states exactly as the random-token control does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from anchorscope.errors import UserError, unknown

World = Literal["one-mechanism", "two-pathways", "shift", "continuum", "no-effect"]
WORLDS: tuple[World, ...] = get_args(World)
INTERVENTIONS = ("knockout", "random", "question", "answer-only")
BELIEF = 1.5  # mean belief of wrong answers, minus that of right ones; its own spread is 1
JOLT = 0.1  # spread of what the random-token control does to a state, in every direction


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is planted: how much, in how many samples, under how much noise."""

    world: World = "two-pathways"
    samples: int = 400
    layers: int = 12
    width: int = 32
    strength: float = 4.0  # how far a belief is pushed, in spreads of the belief
    mixture: float = 0.5  # share of the samples that are pushed (two-pathways, continuum's mean)
    noise: float = 0.5  # spread of the knockout's own jolt, in every direction
    seed: int = 0

    def __post_init__(self) -> None:
        if self.world not in WORLDS:
            raise unknown("world", self.world, WORLDS)
        for name, least in (("samples", 60), ("layers", 1), ("width", 2)):
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}. Accepted: {least} or more.")
        if not 0 < self.mixture < 1:
            raise UserError(f"mixture is {self.mixture}. Accepted: between 0 and 1.")
        if not (self.strength >= 0 and self.noise > 0):
            raise UserError(
                f"strength is {self.strength} and noise {self.noise}. Accepted: strength of 0 or "
                "more, noise above 0."
            )


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """States of every intervention [question, layer, width], and the truth behind them."""

    states: dict[str, np.ndarray]
    z: np.ndarray  # [question], 1 = wrong
    pushed: np.ndarray  # [question], how much of the push each sample takes, 0 to about 1


def simulate_states(truth: Truth) -> Simulated:
    """The states of a world; the same truth gives the same states."""
    rng = np.random.default_rng(truth.seed)
    n, layers, width = truth.samples, truth.layers, truth.width
    z = rng.permutation(np.arange(n) % 2)
    axis = rng.standard_normal((layers, width))
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    rise = np.minimum(1.0, np.arange(1, layers + 1) / max(1, layers // 2))  # full from the middle
    lasting = rng.standard_normal(n)  # the part of a belief's noise that all layers share
    shape = (n, layers, width)
    clean = 0.6 * rng.standard_normal(shape) + 0.8 * np.einsum("n,lw->nlw", lasting, axis)
    across = rng.standard_normal(shape)
    across -= np.einsum("nlw,lw->nl", across, axis)[..., None] * axis
    clean += 0.8 * across  # so that every direction has spread 1
    clean += np.einsum("n,l,lw->nlw", BELIEF * (2 * z - 1.0), rise, axis)
    pushed = _pushed(truth, rng)
    states = {"clean": clean, "random": clean + JOLT * rng.standard_normal(shape)}
    for name, much in (("knockout", 1.0), ("question", 1.2), ("answer-only", 1.3)):
        states[name] = _knock_out(truth, rng, clean, axis, rise, pushed, much)
    return Simulated(
        states={name: of.astype(np.float32) for name, of in states.items()}, z=z, pushed=pushed
    )


def _pushed(truth: Truth, rng: np.random.Generator) -> np.ndarray:
    """How much of the push each sample takes."""
    n, share = truth.samples, truth.mixture
    if truth.world == "two-pathways":
        return rng.permutation((np.arange(n) < round(share * n)).astype(float))
    if truth.world == "continuum":
        reach = np.sqrt(3 * share * (1 - share))  # the mean and spread that two pathways would have
        return rng.uniform(share - reach, share + reach, n)
    return np.ones(n)


def _knock_out(
    truth: Truth,
    rng: np.random.Generator,
    clean: np.ndarray,
    axis: np.ndarray,
    rise: np.ndarray,
    pushed: np.ndarray,
    much: float,
) -> np.ndarray:
    """The states under one intervention."""
    jolt = rng.standard_normal(clean.shape)
    if truth.world == "no-effect":
        return clean + JOLT * jolt
    push = much * truth.strength * rise  # [layer]
    if truth.world == "one-mechanism":
        # The stronger, the less of the clean state is left; the noise fills up what is lost.
        kept = np.exp(-push / 4)[:, None]
        return kept * clean + np.sqrt(1 - kept**2 + truth.noise**2) * jolt
    if truth.world == "shift":
        return clean - push[:, None] * axis + truth.noise * jolt
    belief = np.einsum("nlw,lw->nl", clean, axis)
    towards = np.sign(belief) * push * pushed[:, None]
    return clean - towards[..., None] * axis + truth.noise * jolt
