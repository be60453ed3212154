"""Tests E4 and E5: two groups or a continuum, and what explains two groups.

Six tests: within each ŷ and both, on two roads. On the first road Q and A differ by how far they
move: the shifts have two humps. On the second they follow two laws: Q's belief falls to the prior,
A's stays, so that the shifts in units of the margin have two humps, among the samples whose margin
is large enough to tell. Either way two sides that share no training question must agree on who is
in which hump, and the lower one must flip more.

The shifts of one probe hold its own error too: it blurs two humps into one, and never makes two out
of one. So a missing second hump in a weak probe proves little. Groups are explained without the
knockout by cells of samples with similar covariates (docs/method.md, E4 and E5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, get_args

import numpy as np
from scipy.special import chdtrc, expit

from anchorscope.pathways.band import SIDES, Band
from anchorscope.pathways.effect_tests import retest_rows
from anchorscope.records import Estimate
from anchorscope.stats.drawing import effective_size
from anchorscope.stats.humps import Humps, dip, dip_p, two_humps, unimodal_p
from anchorscope.stats.intervals import ALPHA, NOTHING, Draws, difference, rate
from anchorscope.stats.ranking import auroc, kappa_interval

Road = Literal["shifts", "laws"]
ROADS: tuple[Road, ...] = get_args(Road)
Within = Literal["right", "wrong", "both"]
WITHIN: tuple[Within, ...] = get_args(Within)
ALPHA_LOOK = ALPHA / (len(WITHIN) * len(ROADS))  # the six tests share the 5 %
KAPPA = 0.4  # the least agreement on the groups, at the lower end of its interval
FEWEST = 40  # samples below which humps are not looked for
_HOPELESS = 0.3  # the uniform's p from which no smoothing was seen to reach ALPHA_LOOK
EXPLAINED = 0.65  # share of the groups' variance between cells from which cells explain them
PURE = 0.1  # a cell with less than this share of a group holds one group only
FINDER = 0.7  # least part of the groups' gap that the whole-question cut must leave
SENSITIVE = 0.63  # AUROC that a rule of the belief would have, below which it cannot be excluded
TOLD = 0.4  # part of that rule's AUROC above chance from which the belief tells the groups
_LEVELS = 6  # a number is cut into this many ranges for pairs
_LEAVES = 10
_SIMULATED = 10  # groups made by a rule of the belief
_SHRINK = 4.0  # samples that a cell's mean is shrunk by


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What explains the groups of one hump test."""

    cells: float  # share of the groups' variance that cells of class, belief and kinds account for
    belief: float  # the same by class and belief alone
    p_within: float  # of one hump among the samples in cells that hold both groups
    belief_auroc: float  # AUROC of the clean belief for the groups
    rule_auroc: float  # the AUROC that groups made by a rule of the belief would have
    finder: float  # gap of the groups under the whole-question cut over that under the knockout

    @property
    def still_two(self) -> bool:
        """Whether two groups remain within the cells, and no rule of the belief makes them."""
        return bool(
            self.cells < EXPLAINED
            and self.p_within <= ALPHA
            and self.belief_excluded
            and not self.finder < FINDER  # NaN: not tested
        )

    @property
    def belief_excluded(self) -> bool:
        """Whether a rule of the belief is excluded: it would have been seen, and is not."""
        return bool(self.rule_auroc >= SENSITIVE and self.belief_auroc < self._enough)

    @property
    def _enough(self) -> float:
        """The AUROC from which the belief counts as an explanation of the groups."""
        return 0.5 + TOLD * (self.rule_auroc - 0.5)

    @property
    def by(self) -> str:
        """What explains the groups: belief, kinds or finder; "" where none of them does."""
        if self.finder < FINDER:
            return "finder"
        if self.rule_auroc >= SENSITIVE and self.belief_auroc >= self._enough:
            return "belief"
        if self.cells >= EXPLAINED:
            return "belief" if self.belief >= EXPLAINED else "kinds"
        return ""


@dataclass(frozen=True, kw_only=True)
class HumpTest:
    """The test for two humps in one set of samples on one road; NaN where not computed."""

    within: Within
    road: Road
    rows: np.ndarray  # of all samples, bool
    unit: np.ndarray  # [question], of the shifts: 1, or the margin on "laws"
    shifts: np.ndarray  # [row], residuals towards ŷ in that unit, mean of both sides
    lower: np.ndarray  # [row], whether in the lower hump, by both sides together
    p_dip: float
    p_uniform: float
    bic: float = np.nan  # BIC of one component less that of two
    kappa: Estimate = NOTHING  # sides a and b
    retest_kappa: Estimate = NOTHING  # first reading and retest; NaN where there is none
    flips: Estimate = NOTHING  # share that side b flips in a's lower hump less in the upper
    explained: Explained | None = None  # where two groups are shown

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


def look_for_groups(band: Band, draws: Draws) -> dict[tuple[Within, Road], HumpTest]:
    """Run the six tests for two humps on the band's readings of one set of folds."""
    shifts, margin = _shifts(band, band.both(), band.both("knockout")), np.abs(band.belief)
    large = np.zeros(band.n, dtype=bool)
    for mine in (band.wrong, ~band.wrong):
        if mine.any():
            large[mine] = margin[mine] >= np.median(margin[mine])
    by_road: dict[Road, tuple[np.ndarray, np.ndarray]] = {  # the unit, and which samples
        "shifts": (np.ones(band.n), np.ones(band.n, dtype=bool)),
        "laws": (np.maximum(margin, 0.1 * margin.mean()), large),  # a margin of 0 has no unit
    }
    looks: dict[tuple[Within, Road], HumpTest] = {}
    for road, (unit, chosen) in by_road.items():
        subsets = {"right": chosen & ~band.wrong, "wrong": chosen & band.wrong, "both": chosen}
        alone: list[float] = []
        for within in WITHIN:
            rows = subsets[within]
            own = (shifts / unit)[rows]
            one_hump = within == "both" and not _supported(alone)
            p_dip, p_uniform = _dip(own, band.entity[rows], draws.seed, one_hump=one_hump)
            alone.append(p_dip)
            looks[within, road] = HumpTest(
                within=within,
                road=road,
                rows=rows,
                unit=unit,
                shifts=own,
                lower=np.zeros(len(own), dtype=bool),
                p_dip=p_dip,
                p_uniform=p_uniform,
            )
    return looks


def _shifts(band: Band, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Residuals of knocked-out logits under the one law, signed towards ŷ, [question]."""
    return band.towards * band.law(before, after).residual


def _dip(
    shifts: np.ndarray, entity: np.ndarray, seed: int, *, one_hump: bool
) -> tuple[float, float]:
    """The dip's p under one hump of the residuals' own shape, and under the uniform.

    The first compares with the dips of the residuals themselves, smoothed until they have one hump;
    it is 1 where `one_hump` is known already.
    """
    if len(shifts) < FEWEST or not np.ptp(shifts) > 0:
        return np.nan, np.nan
    # Questions about one entity are not independent samples of the law.
    size = effective_size(shifts, entity)
    uniform = dip_p(dip(shifts), round(size))
    if one_hump:
        return 1.0, uniform
    if uniform <= ALPHA_LOOK or uniform > _HOPELESS:
        return uniform, uniform
    return min(uniform, unimodal_p(shifts, size, seed=seed)), uniform


def _supported(alone: list[float]) -> bool:
    """Whether the predicted classes show two humps on their own too (Fisher's combination).

    Two classes with one skewed hump each have two modes when they are pooled.
    """
    tested = np.array([p for p in alone if np.isfinite(p)])
    if not len(tested):
        return False
    return bool(chdtrc(2 * len(tested), -2 * np.log(np.maximum(tested, 1e-6)).sum()) <= ALPHA)


def with_groups(look: HumpTest, band: Band, draws: Draws) -> HumpTest:
    """Add to a hump test its two humps and the agreement of independent probes on them."""

    def humps(before: np.ndarray, after: np.ndarray) -> Humps:
        return two_humps((_shifts(band, before, after) / look.unit)[look.rows], seed=draws.seed)

    in_a, in_b = (humps(band.side(s), band.side(s, "knockout")).lower for s in SIDES)
    both = humps(band.both(), band.both("knockout"))
    flipped = ((band.side("b") > 0) != (band.side("b", "knockout") > 0))[look.rows]
    flips = NOTHING
    if 0 < in_a.sum() < len(in_a):
        flips = difference(rate(flipped[in_a]), rate(flipped[~in_a]))
    look = replace(look, lower=both.lower, bic=both.bic, flips=flips)
    return replace(
        look,
        kappa=kappa_interval(in_a, in_b, draws, entity=band.entity[look.rows]),
        retest_kappa=_retest_kappa(look, band, draws),
    )


def _retest_kappa(look: HumpTest, band: Band, draws: Draws) -> Estimate:
    """Agreement of the first reading's humps and the retest's, among samples read again."""
    again = retest_rows(band)
    if again is None or (both := look.rows & again).sum() < FEWEST:
        return NOTHING
    second = band.take(again)
    left = np.full(band.n, np.nan)
    left[again] = _shifts(second, second.both("retest"), second.both("retest-knockout"))
    shifts = (left / look.unit)[both]
    if not np.ptp(shifts) > 0:
        return NOTHING
    lower = two_humps(shifts, seed=draws.seed).lower
    return kappa_interval(look.lower[again[look.rows]], lower, draws, entity=band.entity[both])


def explain(look: HumpTest, band: Band, draws: Draws) -> Explained:
    """Measure what explains the groups of a hump test: cells, belief or finder."""
    own = band.take(look.rows)
    ratio = _likelihood_ratio(look.shifts, look.lower)
    known, belief = (
        _share_of_lower(ratio, cells(own, look.shifts, seed=draws.seed, kinds=kinds), look.lower)
        for kinds in (True, False)
    )
    mixed, p_within = (known > PURE) & (known < 1 - PURE), np.nan
    if mixed.sum() >= FEWEST:
        values = look.shifts[mixed]
        p_within = dip_p(dip(values), round(effective_size(values, own.entity[mixed])))
    return Explained(
        cells=_between(known),
        belief=_between(belief),
        p_within=p_within,
        belief_auroc=_belief_auroc(look.lower, own),
        rule_auroc=_rule_auroc(look, band, own, seed=draws.seed),
        finder=_finder(look, own),
    )


def cells(band: Band, shifts: np.ndarray, *, seed: int, kinds: bool = True) -> np.ndarray:
    """The cell of each sample, [question] int: leaves of a regression tree on its covariates."""
    from sklearn.tree import DecisionTreeRegressor

    numbers, labels = {"belief": band.belief}, []
    if kinds:
        known = band.covariates
        for name, values in {
            "length": known.prompt_length,
            "exact tokens": known.exact_tokens,
            "popularity": known.log_popularity,
        }.items():
            if values is not None and np.isfinite(values).any() and np.nanstd(values) > 0:
                numbers[name] = np.where(np.isnan(values), np.nanmedian(values), values)
        texts = [values for values in (known.relation, known.kind) if values is not None]
        labels = [np.unique(values.astype(str), return_inverse=True)[1] for values in texts]
    each = [*map(_ranges, numbers.values()), *labels]
    each = [values for values in each if values.max(initial=0) > 0]
    # A tree splits on one variable at a time, and misses what only two together show.
    each += [one * (other.max() + 1) + other for one, other in combinations(each, 2)]
    means = [_held_out_mean(values, shifts, band.fold) for values in each]
    tree = DecisionTreeRegressor(
        max_leaf_nodes=_LEAVES, min_samples_leaf=max(20, band.n // 12), random_state=seed
    )
    x = np.nan_to_num(np.column_stack([band.wrong, *numbers.values(), *means]), nan=0.0)
    return np.unique(tree.fit(x, shifts).apply(x), return_inverse=True)[1]


def _ranges(values: np.ndarray) -> np.ndarray:
    """The number of the range that holds each value, of about equal sizes."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, _LEVELS + 1)[1:-1]))
    return np.searchsorted(edges, values)


def _held_out_mean(label: np.ndarray, values: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """The mean value of a sample's label in the other folds, shrunk to the mean of all."""
    label = np.unique(label, return_inverse=True)[1]
    size, means = label.max() + 1, np.zeros(len(values))
    for held_out in np.unique(fold):
        rest, test = fold != held_out, fold == held_out
        total = np.bincount(label[rest], values[rest], size)
        count = np.bincount(label[rest], minlength=size)
        middle = values[rest].mean() if rest.any() else 0.0
        means[test] = ((total + _SHRINK * middle) / (count + _SHRINK))[label[test]]
    return means


def _likelihood_ratio(shifts: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Likelihood of the lower group over that of the upper, [row]; both are Gaussian."""
    least = 0.01 * shifts.var()
    mean = [shifts[lower].mean(), shifts[~lower].mean()]
    variance = [max(shifts[lower].var(), least), max(shifts[~lower].var(), least)]
    share = float(lower.mean())
    log_ratio = np.zeros_like(shifts)
    for _ in range(50):
        dense = [
            -0.5 * ((shifts - m) ** 2 / v + np.log(v)) for m, v in zip(mean, variance, strict=True)
        ]
        log_ratio = dense[0] - dense[1]
        q = expit(np.log(share / (1 - share)) + log_ratio)
        share = float(np.clip(q.mean(), 0.02, 0.98))
        for side, weight in enumerate((q, 1 - q)):
            mean[side] = (weight * shifts).sum() / weight.sum()
            variance[side] = max((weight * (shifts - mean[side]) ** 2).sum() / weight.sum(), least)
    return np.exp(np.clip(log_ratio, -25, 25))


def _share_of_lower(ratio: np.ndarray, leaves: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """The lower group's share in each sample's cell, [row]; `leaves` [row] are numbers from 0."""
    size = np.bincount(leaves)
    share = np.full(len(size), np.clip(lower.mean(), 0.05, 0.95))
    for _ in range(60):
        lower = share[leaves] * ratio
        chance = lower / (lower + 1 - share[leaves])
        share = np.clip(np.bincount(leaves, chance) / size, 1e-4, 1 - 1e-4)
    return share[leaves]


def _between(shares: np.ndarray) -> float:
    """The share of the groups' variance between cells."""
    whole = shares.mean() * (1 - shares.mean())
    return float(1 - (shares * (1 - shares)).mean() / whole) if whole > 0 else np.nan


def _belief_auroc(lower: np.ndarray, band: Band) -> float:
    """AUROC of the clean belief for the groups, within ŷ, by the nearest samples of other folds.

    Any smooth function of the belief counts, not only a rising one.
    """
    areas, sizes = [], []
    for mine in (band.wrong, ~band.wrong):
        if mine.sum() >= FEWEST and 0 < lower[mine].sum() < mine.sum():
            score = _nearest_share(band.belief[mine], lower[mine], band.fold[mine])
            areas.append(auroc(lower[mine].astype(int), score))
            sizes.append(mine.sum())
    return float(np.average(areas, weights=sizes)) if areas else np.nan


def _rule_auroc(look: HumpTest, band: Band, own: Band, *, seed: int) -> float:
    """The AUROC that groups of medium margin would have, given the reliability of beliefs.

    The true belief is drawn given what the probes read of it. Groups that a rule of the true
    belief makes cannot be recognised in the readings better than this.
    """
    rng = np.random.default_rng(seed)
    sure, middle, spread = band.reliability, band.belief.mean(), band.belief.std()
    share, areas = float(np.clip(look.lower.mean(), 0.1, 0.9)), []
    for _ in range(_SIMULATED):
        noise = np.sqrt(sure * (1 - sure)) * spread * rng.standard_normal(own.n)
        margin = np.abs(middle + sure * (own.belief - middle) + noise)
        group = np.zeros(own.n, dtype=bool)
        for mine in (own.wrong, ~own.wrong):
            if mine.any():
                low, high = np.quantile(margin[mine], [0.5 - share / 2, 0.5 + share / 2])
                group[mine] = (margin[mine] > low) & (margin[mine] < high)
        areas.append(_belief_auroc(group, own))
    return float(np.nanmean(areas)) if np.isfinite(areas).any() else np.nan


def _nearest_share(belief: np.ndarray, lower: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """The lower group's share among the samples of other folds whose belief is nearest."""
    score = np.full(len(belief), lower.mean())
    for test in (fold == number for number in np.unique(fold)):
        order = np.argsort(belief[~test])
        x, hits = belief[~test][order], lower[~test][order].astype(float)
        count = min(len(x), max(10, int(np.sqrt(len(belief)))))
        if count:
            total = np.concatenate([[0.0], np.cumsum(hits)])
            start = np.clip(np.searchsorted(x, belief[test]) - count // 2, 0, len(x) - count)
            score[test] = (total[start + count] - total[start]) / count
    return score


def _finder(look: HumpTest, own: Band) -> float:
    """The groups' gap under the whole-question cut over that under the knockout.

    Groups that a missed E_Q makes are gone when the whole question is hidden: near 0.
    """
    if not own.has("question"):
        return np.nan
    rows = own.rows("question")
    lower = look.lower[rows]
    if not 0 < lower.sum() < len(lower):
        return np.nan
    gaps = []
    for name in ("question", "knockout"):
        moved = (own.towards * (own.both(name) - own.both()))[rows]
        gaps.append(moved[lower].mean() - moved[~lower].mean())
    return float(gaps[0] / gaps[1]) if gaps[1] < 0 else np.nan
