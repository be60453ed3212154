"""One made-up world judged in both modes, without a run folder: for error rates and power."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorscope.pathways.effects import delta_p, flips
from anchorscope.pathways.finding import CLASSES, FindingName, choose_layer, find
from anchorscope.pathways.strict_layer import StrictDraws, examine_layer
from anchorscope.probes.cross_fit import cross_fit
from anchorscope.probes.folds import entity_folds
from anchorscope.probes.readings import Readings
from anchorscope.records import Estimate
from anchorscope.simulate.worlds import Truth, simulate_states
from anchorscope.stats.intervals import difference_of_means

# Less than a run's, and only what the verdict reads: there are many worlds.
DRAWS = StrictDraws(resamples=300, simulations=400, modes=("strict",), subsets=CLASSES)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What both modes say of one world."""

    paper_gap: Estimate  # ΔP of Q less A, in points
    finding: FindingName
    beyond: bool  # a gap beyond the one-mechanism band within a predicted class
    agreed: bool  # probes agree there
    two_humps: bool  # two humps there

    @property
    def paper_holds(self) -> bool:
        """What paper mode concludes: the groups differ, so there are two."""
        return self.paper_gap.high < 0


def judge_world(truth: Truth, *, fold_seeds: int = 3, draws: StrictDraws = DRAWS) -> Judged:
    """The verdicts on one world, by the ordinary probes and the ordinary rule."""
    world = simulate_states(truth)
    states = {name: world.states[name] for name in ("clean", "knockout", "random")}
    ids = [str(number) for number in range(truth.samples)]
    entities = [str(number // 2) for number in range(truth.samples)]
    examined, first, layer = [], None, 1
    for seed in range(fold_seeds):
        fold = entity_folds(entities, seed=truth.seed + seed)
        readings, _ = cross_fit(states, ids=ids, z=world.z, fold=fold, workers=1)
        if first is None:
            first, layer = readings, choose_layer(readings)
            states = {name: of[:, layer - 1 : layer] for name, of in states.items()}
        examined.append(examine_layer(readings, layer if readings is first else 1, draws))
    assert first is not None
    finding = find(examined)
    return Judged(
        paper_gap=_paper_gap(first, layer, draws),
        finding=finding.name,
        beyond=any(c.beyond for c in finding.classes),
        agreed=any(c.agreed for c in finding.classes),
        two_humps=any(c.two_humps for c in finding.classes),
    )


def _paper_gap(readings: Readings, layer: int, draws: StrictDraws) -> Estimate:
    clean, knocked = (
        readings.at(layer, "paper", name).astype(np.float64) for name in ("clean", "knockout")
    )
    return difference_of_means(delta_p(clean, knocked), flips(clean, knocked), draws)
