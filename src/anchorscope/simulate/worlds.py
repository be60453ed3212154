"""Made-up states with a known truth, to see what each way of reading makes of it.

A state is [layer, width]. Along one direction per layer lies the model's belief about its own
answer; everything else is noise. The worlds differ only in what the knockout does (laws.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorscope.simulate.laws import JOLT, Samples, draw_samples, knocked_out
from anchorscope.simulate.truth import Truth

INTERVENTIONS = ("knockout", "neutral", "question", "answer-only")
BELIEF = 1.5  # mean belief of wrong answers, minus that of right ones; its own spread is 1


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """States of every intervention [question, layer, width], and the truth behind them."""

    states: dict[str, np.ndarray]
    z: np.ndarray  # [question], 1 = wrong
    samples: Samples  # dose, relation, kind of answer and entity of each


def simulate_states(truth: Truth) -> Simulated:
    """The states of a world; the same truth gives the same states."""
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
    clean += np.einsum("n,l,lw->nlw", BELIEF * (2 * z - 1.0), rise, axis)
    samples = draw_samples(truth, rng)
    states = {"clean": clean, "neutral": clean + JOLT * rng.standard_normal(shape)}
    for name, much in (("knockout", 1.0), ("question", 1.2), ("answer-only", 1.3)):
        push = much * truth.strength * rise
        states[name] = knocked_out(truth, rng, clean, axis, push, samples)
    return Simulated(
        states={name: of.astype(np.float32) for name, of in states.items()}, z=z, samples=samples
    )
