"""Compute the finding of one simulated world without a run folder, for error rates and power."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anchorscope.config import Config
from anchorscope.pathways.band import READ
from anchorscope.pathways.dataset import DatasetInputs, whole_finding
from anchorscope.pathways.effects import delta_p, flips
from anchorscope.pathways.finding import Finding
from anchorscope.pathways.power import WORLDS
from anchorscope.probes.cross_fit import read_layers
from anchorscope.probes.folds import labelled
from anchorscope.records import Estimate, Sample
from anchorscope.run_folder.states import StateBank
from anchorscope.simulate.worlds import Truth, samples_of, simulate_states
from anchorscope.stats.intervals import difference_of_means

CONFIG = Config(model="simulated", data=("simulated",), resamples=300)  # many worlds, fewer draws


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The conclusions of paper mode and strict mode about one simulated world."""

    paper_gap: Estimate  # ΔP of Q less A, in points
    finding: Finding

    @property
    def paper_holds(self) -> bool:
        """Whether paper mode finds two groups: the interval of its gap is below 0."""
        return self.paper_gap.high < 0


class StatesInMemory(StateBank):
    """A `StateBank` of states in memory, [question, layer, width] by pass."""

    def __init__(self, states: Mapping[str, np.ndarray]) -> None:
        self.states = states

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.states)

    @property
    def layers(self) -> int:
        return self.states["clean"].shape[1]

    def layer(self, name: str, layer: int) -> np.ndarray:
        return self.states[name][:, layer - 1]


def judge_world(truth: Truth, *, config: Config = CONFIG, worlds: int = WORLDS) -> Judged:
    """Simulate a world and compute its finding; `worlds` are planted in it to estimate power."""
    world = simulate_states(truth)
    config = replace(config, seed=truth.seed)
    return judge_states(world.states, samples_of(truth, world), config=config, worlds=worlds)


def judge_states(
    states: Mapping[str, np.ndarray],
    samples: Sequence[Sample],
    *,
    config: Config = CONFIG,
    worlds: int = WORLDS,
) -> Judged:
    """Compute the finding from states [question, layer, width] by pass, one row for each sample.

    All samples are of one dataset and usable.
    """
    answers = labelled(samples, samples[0].question.dataset, config)
    bank = StatesInMemory({name: states[name] for name in READ if name in states})
    readings, _ = read_layers(bank, answers, config, [*bank.states])
    inputs = DatasetInputs(model="", config=config, answers=answers, readings=readings, bank=bank)
    clean, cut = (readings.at(inputs.layer, "paper", name) for name in ("clean", "knockout"))
    return Judged(
        paper_gap=difference_of_means(delta_p(clean, cut), flips(clean, cut), inputs.draws),
        finding=whole_finding(inputs, worlds=worlds),
    )
