"""Simulated states with a known truth, to see what each way of reading makes of it.

A state is [layer, width]. Along one direction per layer lies the model's belief about its own
answer; everything else is noise. The worlds differ only in what the knockout does (laws.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorscope.records import Answer, Question, Sample, Span
from anchorscope.simulate.laws import JOLT, Samples, draw_samples, knocked_out, neutral
from anchorscope.simulate.truth import Truth

INTERVENTIONS = (
    "knockout", "neutral", "content", "question", "answer-only", "retest", "retest-knockout",
)  # fmt: skip
AGAIN = 0.3  # spread of what other worked examples do to a state, in every direction
_ANSWERS = {"name": ("It", "Another"), "yes/no": ("yes", "no")}  # right and wrong, by kind


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """States of every intervention [question, layer, width], and the truth behind them."""

    states: dict[str, np.ndarray]
    z: np.ndarray  # [question], 1 = wrong
    samples: Samples


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
    clean += np.einsum("n,l,lw->nlw", truth.belief * (2 * z - 1.0), rise, axis)
    retest = clean + AGAIN * rng.standard_normal(shape)
    samples = draw_samples(truth, rng)
    belief = np.einsum("nlw,lw->nl", clean, axis)
    found = np.where(samples.missed, 0.0, samples.dose)

    def cut(states: np.ndarray, strength: float, dose: np.ndarray) -> np.ndarray:
        push = strength * truth.strength * rise
        return knocked_out(
            truth, rng, states, belief=belief, axis=axis, push=push, dose=dose
        )  # fmt: skip

    states = {
        "clean": clean,
        "retest": retest,
        "knockout": cut(clean, 1.0, found),
        "retest-knockout": cut(retest, 1.0, found),
        "question": cut(clean, 1.2, samples.dose),
        "neutral": neutral(
            truth, rng, clean, belief=belief, axis=axis, rise=rise, half=samples.half
        ),
        "content": clean + JOLT * rng.standard_normal(shape),
        "answer-only": cut(clean, 1.3, samples.dose),
    }
    return Simulated(
        states={name: of.astype(np.float32) for name, of in states.items()}, z=z, samples=samples
    )


def samples_of(truth: Truth, world: Simulated) -> list[Sample]:
    """The samples of a world as a run has them: questions without content, but with all labels."""
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
