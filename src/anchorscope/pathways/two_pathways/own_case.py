"""The run's own effect, planted: worlds that look like the run once the law is fitted to them.

The humps of a run are seen in what its fitted law leaves over, and fitting blurs them: every fold's
line follows the samples that happen to be Q there. Planting humps as far apart as those residuals
show, and fitting the law to the planted world, would blur them twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from anchorscope.pathways.humps import two_humps
from anchorscope.pathways.one_law import Known, one_law
from anchorscope.pathways.two_pathways.learning import learning_of
from anchorscope.pathways.two_pathways.looks import PROBES, Logits
from anchorscope.pathways.two_pathways.planted import Plan, clear_case

ROUNDS, WORLDS = 4, 12  # of adjustment, and worlds planted in each
_STEP = 1.5  # the most that one round changes a distance by


def own_case(logits: Logits, known: Known) -> Plan | None:
    """Humps as far apart as this run's residuals have them, the best guess of its own effect.

    They are those of the paper probe, turned towards ŷ. A mixture of equal spreads has the
    variance of its noise times 1 + w(1 - w)d², which parts every probe's variance in two. The
    law blurs humps when it is fitted: the plan is such that its fitted worlds look like the run.
    """
    clear = clear_case(logits, known)
    if clear is None:
        return None
    left = _left_over(logits, clear.fitted, known)
    humps = two_humps(left["paper"])
    share, apart = float(humps.lower.mean()), humps.separation
    widened = np.sqrt(1 + share * (1 - share) * apart**2)
    noise = {p: float(left[p].std() / widened) for p in PROBES}
    plan = replace(clear, noise=noise, share=share, apart=dict.fromkeys(PROBES, apart))
    learning = learning_of(left, noise)
    return _matched(replace(plan, learning=learning).learnt_from(learning.n), left)


def _left_over(
    logits: Logits, fitted: Mapping[str, np.ndarray], known: Known
) -> dict[str, np.ndarray]:
    """What the law leaves over of each probe's logits [question], turned towards ŷ."""
    towards = np.where(known.predicted == 1, 1.0, -1.0)
    return {p: towards * (logits.knockout[p] - fitted[p]) for p in PROBES}


def _matched(plan: Plan, left: Mapping[str, np.ndarray]) -> Plan:
    """The plan with humps and noise such that its worlds, fitted, leave over what the run did.

    Compared are the distance of the paper probe's humps and the spread of each probe's residuals,
    by their medians over planted worlds of the run's own size.
    """
    rng, seen = np.random.default_rng(0), _measured(left)
    for _ in range(ROUNDS):
        drawn = [_measured(_refitted(plan, rng)) for _ in range(WORLDS)]
        further, *wider = seen / np.median(drawn, axis=0)
        plan = _changed(plan, float(np.clip(further, 1 / _STEP, _STEP)), np.array(wider))
    return plan


def _measured(left: Mapping[str, np.ndarray]) -> np.ndarray:
    """The distance of the paper probe's humps, then the spread of each probe's residuals."""
    return np.array([two_humps(left["paper"]).separation, *(left[p].std() for p in PROBES)])


def _refitted(plan: Plan, rng: np.random.Generator) -> dict[str, np.ndarray]:
    world = plan.world(rng)
    fits = {p: one_law(world.clean[p], world.knockout[p], plan.known).fitted for p in PROBES}
    return _left_over(world, fits, plan.known)


def _changed(plan: Plan, further: float, wider: np.ndarray) -> Plan:
    """The plan with humps so much further apart, and residuals so much wider."""
    apart = {p: plan.apart[p] * further for p in PROBES}
    between = plan.share * (1 - plan.share)
    # Humps further apart widen the residuals by themselves: what is left is the noise's.
    by_humps = [
        np.sqrt((1 + between * apart[p] ** 2) / (1 + between * plan.apart[p] ** 2)) for p in PROBES
    ]
    scale = wider / by_humps
    noise = {p: plan.noise[p] * float(of) for p, of in zip(PROBES, scale, strict=True)}
    learning = plan.learning
    if learning is not None:
        learning = replace(learning, shared=learning.shared * scale**2, own=learning.own * scale**2)
    return replace(plan, apart=apart, noise=noise, learning=learning)
