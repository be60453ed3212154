"""What a run could have seen: a share of its samples loses its belief, the others keep theirs.

The loss is planted in the readings of the run's own states, with their own noise, and goes through
the whole rule, all sets of folds together. The belief that is taken away is drawn given what the
probes read of it: a probe at real width reads much else beside, and that stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from anchorscope.pathways.band import Band
from anchorscope.pathways.finding import ENOUGH, shows_two_pathways
from anchorscope.stats.intervals import Draws

SHARES = {"half": 0.5, "fifth": 0.2}
WORLDS = 20  # planted for each share
_FEWEST = 60  # samples read twice below which their noise is not known
_RESAMPLES = 100  # behind the intervals of a planted world
# Each pass that shows the loss, and the pass that it is read against.
_CUTS = {"knockout": "clean", "question": "clean", "retest-knockout": "retest"}


def power(
    bands: Sequence[Band], *, share: float, worlds: range, seed: int, lost: float = 1.0
) -> list[bool]:
    """Whether two pathways are found in each of these planted worlds.

    `bands` are the readings of all sets of folds, of the same samples. `lost` is the part of its
    belief that each planted sample loses.
    """
    found = []
    for number in worlds:
        rng = np.random.default_rng((seed, number))
        planted = plant(bands, share=share, lost=lost, rng=rng)
        draws = Draws(seed=int(rng.integers(2**31)), resamples=_RESAMPLES)
        found.append(shows_two_pathways(planted, draws))
    return found


def deciding_power(bands: Sequence[Band], *, seed: int) -> list[bool]:
    """Whether two pathways are found where a half loses its belief, until that decides a finding.

    The worlds are those of `power`. No more are planted once the share that is found must end up
    below or above `ENOUGH`.
    """
    found: list[bool] = []
    for number in range(WORLDS):
        found += power(bands, share=SHARES["half"], worlds=range(number, number + 1), seed=seed)
        hits = sum(found)
        if hits >= ENOUGH * WORLDS or hits + WORLDS - len(found) < ENOUGH * WORLDS:
            break
    return found


def plant(
    bands: Sequence[Band], *, share: float, lost: float, rng: np.random.Generator
) -> list[Band]:
    """The bands with the loss in them: the same samples lose it in every set of folds."""
    n = bands[0].n
    dose = lost * (rng.random(n) < share)
    jolt = rng.standard_normal(n)
    donors = {cut: _donors(bands[0].wrong, rng) for cut in _CUTS}
    return [_planted(band, dose, donors, jolt) for band in bands]


def _donors(wrong: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each sample another one of the same ŷ, whose noise it takes."""
    donor = np.arange(len(wrong))
    for mine in (wrong, ~wrong):
        donor[mine] = rng.permutation(donor[mine])
    return donor


def _planted(
    band: Band, dose: np.ndarray, donors: Mapping[str, np.ndarray], jolt: np.ndarray
) -> Band:
    sure, belief = band.reliability, band.belief
    middle, spread = belief.mean(), belief.std()
    true = sure * (belief - middle) + np.sqrt(sure * (1 - sure)) * spread * jolt
    scale = np.array([_slope(belief, clean) for clean in band.logits["clean"]])
    noise = _noise(band)
    logits = dict(band.logits)
    for cut, before in _CUTS.items():
        if band.has(cut) and band.has(before):
            jolts = noise[:, donors[cut]]
            planted = band.logits[before] - dose * scale[:, None] * true + jolts
            logits[cut] = np.where(np.isfinite(band.logits[cut]), planted, np.nan)
    return replace(band, logits=logits)


def _noise(band: Band) -> np.ndarray:
    """What a cut does to a reading beside its effect on the sample, [probe, question].

    Half of the difference between two cuts of one sample: what is the sample's own cancels. The
    second cut is the retest's, else the whole question's; without either, all that one law leaves.
    """
    left = _residuals(band, "knockout", "clean")
    for cut, before in (("retest-knockout", "retest"), ("question", "clean")):
        if band.has(cut) and band.has(before):
            apart = (left - _residuals(band, cut, before)) / np.sqrt(2)
            twice = np.isfinite(apart).all(axis=0)
            if twice.sum() < _FEWEST:
                continue
            # Samples that were not read twice take the noise of those that were, in turn.
            donor = np.flatnonzero(twice)[np.arange(band.n) % twice.sum()]
            return np.where(twice, apart, apart[:, donor])
    return left


def _residuals(band: Band, cut: str, before: str) -> np.ndarray:
    """What one law leaves of each probe's logits under a cut, [probe, question]."""
    rows = band.rows(cut, before)
    some, left = band.take(rows), np.full((len(band.probes), band.n), np.nan)
    for probe, name in enumerate(band.probes):
        left[probe, rows] = some.law(some.side(name, before), some.side(name, cut)).residual
    return left


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    apart = x - x.mean()
    variance = (apart * apart).mean()
    return float((apart * y).mean() / variance) if variance > 0 else 0.0
