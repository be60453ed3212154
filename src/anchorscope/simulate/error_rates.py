"""One made-up world judged in both modes, without a run folder: for error rates and power."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorscope.pathways.effects import delta_p, flips
from anchorscope.pathways.strict_layer import StrictDraws, examine_layer
from anchorscope.pathways.two_pathways.finding import FindingName, choose_layer, find
from anchorscope.probes.cross_fit import cross_fit
from anchorscope.probes.folds import entity_folds
from anchorscope.probes.labelled import Covariates
from anchorscope.probes.readings import Readings
from anchorscope.records import Estimate
from anchorscope.simulate.truth import Truth
from anchorscope.simulate.worlds import simulate_states
from anchorscope.stats.intervals import difference_of_means

# Less than a run's, and only what the verdict reads: there are many worlds.
DRAWS = StrictDraws(resamples=300, simulations=200, modes=("strict",), subsets=())


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What both modes say of one world."""

    paper_gap: Estimate  # ΔP of Q less A, in points
    same_gap: float  # group and effect from one half-sized probe
    strict_gap: float
    finding: FindingName

    @property
    def paper_holds(self) -> bool:
        """What paper mode concludes: the groups differ, so there are two."""
        return self.paper_gap.high < 0


def judge_world(truth: Truth, *, fold_seeds: int = 3, draws: StrictDraws = DRAWS) -> Judged:
    """The verdicts on one world, by the ordinary probes and the ordinary rule."""
    world = simulate_states(truth)
    states = {name: world.states[name] for name in ("clean", "knockout", "neutral")}
    ids = [str(number) for number in range(truth.samples)]
    n = truth.samples
    covariates = Covariates(
        log_popularity=np.full(n, np.nan),
        prompt_length=np.full(n, 20.0),
        relation=world.samples.relation,
        kind=world.samples.kind,
        entity=world.samples.entity,
    )
    examined, first, layer = [], None, 1
    for seed in range(fold_seeds):
        entity = world.samples.entity.tolist()
        fold = entity_folds(entity, seed=truth.seed + seed)
        readings, _ = cross_fit(states, ids=ids, z=world.z, fold=fold, entity=entity, workers=1)
        if first is None:
            first, layer = readings, choose_layer(readings)
            states = {name: of[:, layer - 1 : layer] for name, of in states.items()}
        at = layer if readings is first else 1
        examined.append(examine_layer(readings, at, draws, covariates=covariates, closely=True))
    assert first is not None
    finding = find(examined)
    return Judged(
        paper_gap=_paper_gap(first, layer, draws),
        same_gap=finding.same_gap,
        strict_gap=finding.gap.value,
        finding=finding.name,
    )


def _paper_gap(readings: Readings, layer: int, draws: StrictDraws) -> Estimate:
    clean, knocked = (
        readings.at(layer, "paper", name).astype(np.float64) for name in ("clean", "knockout")
    )
    return difference_of_means(delta_p(clean, knocked), flips(clean, knocked), draws)
