"""E4: two groups or a degree? Six looks: within each ŷ and both, on two roads.

On the first road Q and A differ by how far they move: the shifts have two humps. On the second they
follow two laws: Q's belief falls to the prior, A's stays, so that the shifts in units of the margin
have two humps, among the samples whose margin is large enough to tell. Either way two sides that
share no training question must agree on who is in which hump, and the lower one must flip more.

The dip is held against that of the residuals themselves, smoothed until they have one hump
(Silverman's bootstrap). Smoothing rounds the edges of a flat hump, so that the level of this ratio
comes from the flattest hump there is, the uniform. The dip's own p under the uniform is beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from scipy.ndimage import gaussian_filter1d
from scipy.special import chdtrc

from anchorscope.pathways.agreement import kappa_interval
from anchorscope.pathways.band import SIDES, Band
from anchorscope.pathways.effect import NOTHING, retest_rows
from anchorscope.pathways.humps import two_humps
from anchorscope.records import Estimate
from anchorscope.stats.dip import dip, dip_p
from anchorscope.stats.drawing import effective_size
from anchorscope.stats.intervals import ALPHA, Draws, difference, rate

Road = Literal["shifts", "laws"]
ROADS: tuple[Road, ...] = get_args(Road)
Within = Literal["right", "wrong", "both"]
WITHIN: tuple[Within, ...] = get_args(Within)
ALPHA_LOOK = ALPHA / (len(WITHIN) * len(ROADS))  # the six looks share the 5 %
KAPPA = 0.4  # the least agreement on the groups, at the lower end of its interval
FEWEST = 40  # samples below which humps are not looked for
_DRAWS = 40  # of the smoothed residuals, behind the mean of their dips
# Ratios of dips (unimodal_p) of n uniform samples that are reached with these chances, a line in
# log10(n): 4,000 draws of n = 40 and 100, 3,000 of 300, 1,500 of 1,000.
_RATIO_P = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
_RATIO = np.array([0.945, 1.080, 1.136, 1.251, 1.316, 1.484, 1.572, 1.707, 1.812])
_RATIO_GROWS = np.array([0.093, 0.096, 0.113, 0.127, 0.155, 0.155, 0.164, 0.142, 0.153])
_HOPELESS = 0.3  # the uniform's p from which no smoothing was seen to reach ALPHA_LOOK
_MOST = 2000  # samples of a draw
_BINS = 512  # of the residuals, for counting the humps of a smoothed density


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one set of samples shows on one road; NaN where it was not worth computing."""

    within: Within
    road: Road
    rows: np.ndarray  # of all samples, bool
    shifts: np.ndarray  # [row], residuals towards ŷ, mean of both sides; by margin on "laws"
    lower: np.ndarray  # [row], who is in the lower hump, by both sides together
    p_dip: float
    p_uniform: float
    bic: float = np.nan  # BIC of one component less that of two
    kappa: Estimate = NOTHING  # sides a and b
    retest_kappa: Estimate = NOTHING  # first reading and retest; NaN where there is none
    flips: Estimate = NOTHING  # share that side b flips in a's lower hump less in the upper

    @property
    def grouped(self) -> bool:
        """Whether two groups are shown, on which independent probes agree."""
        return bool(
            self.p_dip <= ALPHA_LOOK
            and self.bic > 0
            and self.kappa.low > KAPPA
            and self.flips.low > 0
        )

    @property
    def comes_back(self) -> bool:
        """Whether the retest puts the samples into the same groups, where there was one."""
        return bool(np.isnan(self.retest_kappa.value) or self.retest_kappa.low > KAPPA)


def look_for_groups(band: Band, draws: Draws) -> dict[tuple[Within, Road], Look]:
    """All six looks at the band's readings of one set of folds: whether there are two humps."""
    shifts = _residual(band, "both")
    looks: dict[tuple[Within, Road], Look] = {}
    for road in ROADS:
        unit = _margin(band) if road == "laws" else np.ones(band.n)
        chosen = _large_margin(band) if road == "laws" else np.ones(band.n, dtype=bool)
        subsets = {"right": chosen & ~band.wrong, "wrong": chosen & band.wrong, "both": chosen}
        alone: list[float] = []
        for within in WITHIN:
            rows = subsets[within]
            turned = (shifts / unit)[rows]
            p_dip, p_uniform = _dip(turned, band, rows, draws.seed)
            if within != "both":
                alone.append(p_dip)
            elif not _supported(alone):
                p_dip = 1.0 if np.isfinite(p_dip) else np.nan
            look = Look(
                within=within,
                road=road,
                rows=rows,
                shifts=turned,
                lower=np.zeros(int(rows.sum()), dtype=bool),
                p_dip=p_dip,
                p_uniform=p_uniform,
            )
            looks[within, road] = look
    return looks


def with_groups(look: Look, band: Band, draws: Draws) -> Look:
    """The look with its two humps, and who agrees on them."""
    unit = _margin(band) if look.road == "laws" else np.ones(band.n)
    turned = {probe: (_residual(band, probe) / unit)[look.rows] for probe in (*SIDES, "both")}
    return _groups(look, turned, band, unit, draws)


def unimodal_p(values: np.ndarray, size: float, *, seed: int) -> float:
    """The chance that one hump has a dip this much larger than its values, smoothed, have.

    `size` is the number of independent samples that the values [sample] amount to.
    """
    width = one_hump_width(values)
    rng = np.random.default_rng(seed)
    # The dip falls with the root of the size, so that fewer draws tell the same.
    count = min(max(4, round(size)), _MOST)
    shape = (_DRAWS, count)
    drawn = values[rng.integers(len(values), size=shape)] + width * rng.standard_normal(shape)
    ratio = dip(values) * np.sqrt(size / count) / np.mean([dip(row) for row in drawn])
    flat = _RATIO + _RATIO_GROWS * np.log10(count)
    return float(np.interp(ratio, flat, _RATIO_P, left=1.0))


def one_hump_width(values: np.ndarray) -> float:
    """The narrowest Gaussian kernel under which the density of the values has a single hump."""
    spread = values.std()
    low, high = values.min() - spread, values.max() + spread
    counts, edges = np.histogram(values, bins=_BINS, range=(low, high))
    step = edges[1] - edges[0]

    def humps(width: float) -> int:
        density = gaussian_filter1d(counts.astype(float), width / step, mode="constant", truncate=6)
        slope = np.sign(np.diff(density))
        return int((np.diff(slope[slope != 0]) < 0).sum())

    narrow, wide = 0.01 * spread, 2 * spread
    for _ in range(12):
        middle = float(np.sqrt(narrow * wide))
        narrow, wide = (middle, wide) if humps(middle) > 1 else (narrow, middle)
    return wide


def _residual(band: Band, probe: str) -> np.ndarray:
    """What the one law leaves of a probe's knocked-out logits, turned towards ŷ."""
    if probe == "both":
        return band.towards * band.law(band.both(), band.both("knockout")).residual
    return band.towards * band.law(band.side(probe), band.side(probe, "knockout")).residual


def _margin(band: Band) -> np.ndarray:
    margin = np.abs(band.belief)
    return np.maximum(margin, 0.1 * margin.mean())  # a margin of zero has no unit


def _large_margin(band: Band) -> np.ndarray:
    margin, large = np.abs(band.belief), np.zeros(band.n, dtype=bool)
    for mine in (band.wrong, ~band.wrong):
        if mine.any():
            large[mine] = margin[mine] >= np.median(margin[mine])
    return large


def _dip(shifts: np.ndarray, band: Band, rows: np.ndarray, seed: int) -> tuple[float, float]:
    """The dip's p under one hump of the residuals' own shape, and under the uniform."""
    if len(shifts) < FEWEST or not np.ptp(shifts) > 0:
        return np.nan, np.nan
    # Questions about one entity are not independent samples of the law.
    size = effective_size(shifts, None if band.entity is None else band.entity[rows])
    uniform = dip_p(dip(shifts), round(size))
    if uniform <= ALPHA_LOOK or uniform > _HOPELESS:
        return uniform, uniform
    return min(uniform, unimodal_p(shifts, size, seed=seed)), uniform


def _supported(alone: list[float]) -> bool:
    """Whether the predicted classes show two humps on their own too (Fisher's combination).

    Two classes with one skewed hump each have two modes when they are put together.
    """
    tested = np.array([p for p in alone if np.isfinite(p)])
    if not len(tested):
        return False
    return bool(chdtrc(2 * len(tested), -2 * np.log(np.maximum(tested, 1e-6)).sum()) <= ALPHA)


def _groups(
    look: Look, turned: dict[str, np.ndarray], band: Band, unit: np.ndarray, draws: Draws
) -> Look:
    """The look with its humps, and who agrees on them."""
    humps = {probe: two_humps(values, seed=draws.seed) for probe, values in turned.items()}
    lower = {probe: hump.lower for probe, hump in humps.items()}
    rows = look.rows
    flipped = ((band.side("b") > 0) != (band.side("b", "knockout") > 0))[rows]
    in_a = lower["a"]
    flips = NOTHING
    if 0 < in_a.sum() < len(in_a):
        flips = difference(rate(flipped[in_a]), rate(flipped[~in_a]))
    return replace(
        look,
        lower=lower["both"],
        bic=humps["both"].bic,
        kappa=_kappa(in_a, lower["b"], band, rows, draws),
        retest_kappa=_retest_kappa(look, lower["both"], band, unit, draws),
        flips=flips,
    )


def _retest_kappa(
    look: Look, lower: np.ndarray, band: Band, unit: np.ndarray, draws: Draws
) -> Estimate:
    """Agreement of the first reading's humps and the retest's, among samples read again."""
    again = retest_rows(band)
    if again is None or (both := look.rows & again).sum() < FEWEST:
        return NOTHING
    second = band.take(again)
    left = np.full(band.n, np.nan)
    left[again] = (
        second.towards * second.law(second.both("retest"), second.both("retest-knockout")).residual
    )
    shifts = (left / unit)[both]
    if not np.ptp(shifts) > 0:
        return NOTHING
    return _kappa(
        lower[again[look.rows]], two_humps(shifts, seed=draws.seed).lower, band, both, draws
    )


def _kappa(
    one: np.ndarray, other: np.ndarray, band: Band, rows: np.ndarray, draws: Draws
) -> Estimate:
    entity = None if band.entity is None else band.entity[rows]
    return kappa_interval(one, other, seed=draws.seed, resamples=draws.resamples, entity=entity)
