"""The chance that this run would have found two pathways in the clear case.

Two pathways are planted in the run's own logits: its clean beliefs, its law, its noise and how far
its probes share that noise, its share of Q. The clear case has humps five spreads of the noise
apart. A finding of less than two pathways says little where this chance is small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorscope.pathways.humps import two_humps
from anchorscope.pathways.one_law import Known, one_law
from anchorscope.pathways.two_pathways.looks import PROBES, TOLD, Logits, look_closely
from anchorscope.stats.intervals import Draws

WORLDS = 12  # planted
CLEAR = 5.0  # spreads of the noise between the humps
STRONG = 10  # difference of BIC from which the residuals' own two humps are not taken for noise
SHARES = (0.1, 0.5)  # the share of Q that is planted lies between these


def power(logits: Logits, known: Known, draws: Draws, *, worlds: int = WORLDS) -> float:
    """The share of planted worlds in which two pathways are shown, by one set of folds."""
    return share_of(shown_in_worlds(logits, known, draws, range(worlds)))


def share_of(shown: Sequence[bool]) -> float:
    """The share of worlds in which two pathways are shown; NaN where none could be planted."""
    return sum(shown) / len(shown) if len(shown) else np.nan


def shown_in_worlds(logits: Logits, known: Known, draws: Draws, worlds: range) -> list[bool]:
    """Whether two pathways are shown in each of these planted worlds; none without any noise."""
    fits = {p: one_law(logits.clean[p], logits.knockout[p], known) for p in PROBES}
    noise = {p: _noise(fits[p].residual) for p in PROBES}
    if not all(noise.values()):
        return []
    share, factor = _share(logits), np.linalg.cholesky(_shared_noise(logits, known))
    towards = np.where(known.predicted == 1, 1.0, -1.0)
    rng = np.random.default_rng(draws.seed)
    shown = []
    for number in range(worlds.stop):
        dose = (rng.random(len(towards)) < share) - share
        jolts = factor @ rng.standard_normal((len(PROBES), len(towards)))
        if number not in worlds:
            continue  # drawn all the same: a world does not depend on who looks at it
        planted = {
            p: fits[p].fitted + noise[p] * (jolt - CLEAR * towards * dose)
            for p, jolt in zip(PROBES, jolts, strict=True)
        }
        world = Logits(clean=logits.clean, knockout=planted, control=logits.control)
        looks = look_closely(world, known, draws, laws=("curve",), roads=("shifts",)).values()
        shown.append(any(look.shown and look.told < TOLD for look in looks))
    return shown


def _noise(residual: np.ndarray) -> float:
    """The spread of the residuals, within the humps where there are clearly two."""
    if not residual.std() > 0:
        return 0.0
    humps = two_humps(residual)
    if humps.bic <= STRONG or humps.lower.all() or not humps.lower.any():
        return float(residual.std())
    parts = (residual[humps.lower], residual[~humps.lower])
    return float(np.sqrt(sum(part.var() * len(part) for part in parts) / len(residual)))


def _share(logits: Logits) -> float:
    flipped = (logits.clean["paper"] > 0) != (logits.knockout["paper"] > 0)
    return float(np.clip(flipped.mean(), *SHARES))


def _shared_noise(logits: Logits, known: Known) -> np.ndarray:
    """Correlation of the probes' noise [probe, probe], from the control where there is one."""
    moved = logits.control or logits.knockout
    left = [one_law(logits.clean[p], moved[p], known).residual for p in PROBES]
    return np.corrcoef(left) + 1e-6 * np.eye(len(PROBES))
