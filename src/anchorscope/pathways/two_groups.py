"""E4: two groups or a degree? Six looks: within each ŷ and both, on two roads.

On the first road Q and A differ by how far they move: the shifts have two humps. On the second they
follow two laws: Q's belief falls to the prior, A's stays, so that the shifts in units of the margin
have two humps, among the samples whose margin is large enough to tell. Either way two sides that
share no training question must agree on who is in which hump, and the lower one must flip more.

The dip is held against that of the residuals themselves, smoothed until they have one hump
(Silverman's bootstrap). Smoothing rounds the edges of a flat hump, so that the level of this ratio
comes from the flattest hump there is, the uniform. The dip's own p under the uniform is beside it.

The shifts of one probe hold its own error too: it blurs two humps into one, and never makes two out
of one. So a missing second hump in a weak probe proves little.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np
from scipy.ndimage import gaussian_filter1d
from scipy.special import chdtrc

from anchorscope.pathways.band import SIDES, Band
from anchorscope.pathways.effect import NOTHING, retest_rows
from anchorscope.records import Estimate
from anchorscope.stats.agreement import kappa_interval
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
SHAPED = 20  # shifts below which a shape is not judged
_STEPS, _SMALL = 300, 1e-3  # of expectation and maximisation; the gain at which they end
_LEAST = 1e-4  # added to each variance: no hump may become a point
_MOVED = 1e-4  # of the variance: centres that move less have found their place
_EPS = 10 * np.finfo(np.float64).eps


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


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One hump or two, of n shifts; NaN where they are too few to say."""

    n: int
    p: float = np.nan  # of the dip, under one hump
    bic: float = np.nan  # BIC of one component less that of two; above 0: two fit better


NO_SHAPE = Shape(n=0)


def shape(shifts: np.ndarray, *, seed: int = 0, entity: np.ndarray | None = None) -> Shape:
    """The shape of a list of shifts: Hartigan's dip, and BIC of one against two components.

    Questions about one `entity` are not independent, so the dip counts as many as they amount to.
    """
    shifts = np.asarray(shifts, dtype=np.float64)
    n = len(shifts)
    if n < SHAPED or not np.ptp(shifts) > 0:
        return Shape(n=n)
    size = max(4, round(effective_size(shifts, entity)))
    return Shape(n=n, p=dip_p(dip(shifts), size), bic=two_humps(shifts, seed=seed).bic)


@dataclass(frozen=True, kw_only=True)
class Humps:
    """The best mixture of two Gaussians, and which shifts belong to its lower component."""

    bic: float  # of one component less that of two; above 0: two fit better
    lower: np.ndarray  # [shift], which belong to the lower hump


class _Mixture(NamedTuple):
    """Two components, [2] each."""

    weight: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


def two_humps(shifts: np.ndarray, *, seed: int = 0) -> Humps:
    """Shifts [shift] with some spread, parted in two.

    scikit-learn's GaussianMixture gives the same (to 1e-12, tested) in three times the time: its
    steps are for any number of dimensions.
    """
    n, spread = len(shifts), shifts.std()
    x = (shifts - shifts.mean()) / spread
    mixture = _settled(x, _begun(x, seed))
    weighted = _log_weighted(x, mixture)  # [2, shift]
    likelihood = float(np.logaddexp(*weighted).mean())
    two = -2 * n * likelihood + 5 * np.log(n) + 2 * n * np.log(spread)  # in the shifts' own unit
    # GaussianMixture(1) gives this to 4e-16 (tested) in 24 ms, and this takes 9 µs.
    one = n * np.log(2 * np.pi * shifts.var()) + n + 2 * np.log(n)
    means, low = mixture.mean, int(np.argmin(mixture.mean))
    # The wider component would claim both ends; beyond its own mean a hump is one-sided.
    lower = (x < means[low]) | ((weighted.argmax(axis=0) == low) & (x < means[1 - low]))
    return Humps(
        bic=float(one - two),
        lower=lower,
    )


def _begun(x: np.ndarray, seed: int) -> _Mixture:
    """Weights and variances of two clusters, and the means of the two halves.

    Begun once from the two halves: over 60 samples of 200 the BIC was 1.6 worse at most, and 0.4
    better, than the best of ten random starts.
    """
    second = two_clusters(x, seed=seed)
    middle = np.median(x)
    halves = np.array([x[x <= middle].mean(), x[x >= middle].mean()])
    share = np.stack([~second, second]).astype(np.float64)
    return _maximised(x, share)._replace(mean=halves)


def two_clusters(x: np.ndarray, *, seed: int) -> np.ndarray:
    """Which of the numbers [shift], not all alike, belong to the second cluster of k-means.

    scikit-learn's KMeans, begun once, gives the same (tested). It takes three times as long, and a
    second to import in every process.
    """
    x = x - x.mean()
    centres = _first_centres(x, np.random.RandomState(seed))
    enough, second = _MOVED * x.var(), None
    for _ in range(_STEPS):
        before, second = second, _nearer_second(x, centres)
        if before is not None and np.array_equal(before, second):
            return second
        moved = np.array([x[~second].mean(), x[second].mean()])
        shift, centres = ((moved - centres) ** 2).sum(), moved
        if shift <= enough:
            break
    return _nearer_second(x, centres)


def _first_centres(x: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """One of the numbers, and of two far from it the better one: k-means++."""
    first = x[rng.choice(len(x), p=np.full(len(x), 1 / len(x)))]
    apart = (x - first) ** 2
    drawn = np.searchsorted(np.cumsum(apart), rng.uniform(size=2) * apart.sum())
    rivals = x[np.minimum(drawn, len(x) - 1)]
    left = [np.minimum(apart, (x - rival) ** 2).sum() for rival in rivals]
    return np.array([first, rivals[int(np.argmin(left))]])


def _nearer_second(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Which numbers are nearer to the second of two centres."""
    return np.abs(x - centres[1]) < np.abs(x - centres[0])


def _settled(x: np.ndarray, mixture: _Mixture) -> _Mixture:
    """The mixture after steps of expectation and maximisation."""
    before = -np.inf
    for _ in range(_STEPS):
        weighted = _log_weighted(x, mixture)
        whole = np.logaddexp(*weighted)
        mixture = _maximised(x, np.exp(weighted - whole))
        likelihood = float(whole.mean())
        if abs(likelihood - before) < _SMALL:
            break
        before = likelihood
    return mixture


def _maximised(x: np.ndarray, share: np.ndarray) -> _Mixture:
    """The components of samples that belong to them by these shares [2, shift]."""
    size = share.sum(axis=1) + _EPS
    mean = share @ x / size
    variance = (share * (x - mean[:, None]) ** 2).sum(axis=1) / size + _LEAST
    return _Mixture(size / size.sum(), mean, variance)


def _log_weighted(x: np.ndarray, mixture: _Mixture) -> np.ndarray:
    """Log of weight times density, [2, shift]."""
    weight, mean, variance = (values[:, None] for values in mixture)
    scaled = (x - mean) ** 2 / variance
    return np.log(weight) - 0.5 * (np.log(2 * np.pi * variance) + scaled)
