"""E5: what explains two groups without the knockout: class and belief, kinds, or the finder.

A tree splits the samples into cells by what is known of them: ŷ and clean belief, relation, kind of
answer, length, exact tokens, popularity, and pairs of these. A mixture with the groups' own means
then tells each cell's share of Q, free of the noise that blurs single samples. Cells of one group
each explain the groups; where cells hold both, the groups must still be there inside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.special import expit

from anchorscope.pathways.band import Band
from anchorscope.pathways.two_groups import Look
from anchorscope.probes.labelled import Covariates
from anchorscope.stats.dip import dip, dip_p
from anchorscope.stats.drawing import effective_size
from anchorscope.stats.intervals import ALPHA, Draws
from anchorscope.stats.ranking import auroc

EXPLAINED = 0.65  # share of the groups' variance between cells from which cells explain them
PURE = 0.1  # a cell with less than this share of a group holds one group only
FINDER = 0.7  # least part of the groups' gap that the whole-question cut must leave
SENSITIVE = 0.63  # AUROC that a rule of the belief would have, below which it cannot be excluded
TOLD = 0.4  # part of that rule's AUROC above chance from which the belief tells the groups
_FEWEST = 40
_LEVELS = 6  # a number is cut into this many ranges for pairs
_LEAVES = 10
_SIMULATED = 10  # groups made by a rule of the belief
_SHRINK = 4.0  # samples that a cell's mean is shrunk by


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What accounts for the groups of one look."""

    cells: float  # share of the groups' variance that cells of class, belief and kinds account for
    belief: float  # the same by class and belief alone
    p_within: float  # of one hump among the samples in cells that hold both groups
    belief_auroc: float  # AUROC of the clean belief for the groups
    rule_auroc: float  # the AUROC that groups made by a rule of the belief would have
    finder: float  # gap of the groups under the whole-question cut over that under the knockout

    @property
    def still_two(self) -> bool:
        """Whether the groups are still there within the cells, and no rule of the belief."""
        return bool(
            self.cells < EXPLAINED
            and self.p_within <= ALPHA
            and self.belief_excluded
            and not self.finder < FINDER  # NaN: not tested
        )

    @property
    def belief_excluded(self) -> bool:
        """Whether a rule of the belief would have been seen, and is not."""
        return bool(self.rule_auroc >= SENSITIVE and self.belief_auroc < self._enough)

    @property
    def _enough(self) -> float:
        return 0.5 + TOLD * (self.rule_auroc - 0.5)

    @property
    def by(self) -> str:
        """What explains the groups: belief, kinds or finder; "" where nothing is shown to."""
        if self.finder < FINDER:
            return "finder"
        if self.rule_auroc >= SENSITIVE and self.belief_auroc >= self._enough:
            return "belief"
        if self.cells >= EXPLAINED:
            return "belief" if self.belief >= EXPLAINED else "kinds"
        return ""


def explain(look: Look, band: Band, draws: Draws) -> Explained:
    """What accounts for the groups of a look."""
    own = band.take(look.rows)
    ratio = _likelihood_ratio(look.shifts, look.lower)
    leaves = cells(own, look.shifts, seed=draws.seed)
    shares = _share_of_lower(ratio, leaves, look.lower.mean())
    by_belief = _share_of_lower(
        ratio, cells(own, look.shifts, seed=draws.seed, kinds=False), look.lower.mean()
    )
    return Explained(
        cells=_between(shares),
        belief=_between(by_belief),
        p_within=_p_within(look, shares, own),
        belief_auroc=_belief_auroc(look.lower, own),
        rule_auroc=_rule_auroc(look, band, own, seed=draws.seed),
        finder=_finder(look, own),
    )


def cells(band: Band, shifts: np.ndarray, *, seed: int, kinds: bool = True) -> np.ndarray:
    """The cell of each sample, [question] int: a tree's leaves over what is known of it."""
    from sklearn.tree import DecisionTreeRegressor

    numbers = {"belief": band.belief}
    labels: dict[str, np.ndarray] = {"belief": _ranges(band.belief)}
    if kinds:
        numbers |= _numbers(band.covariates)
        labels |= {name: _ranges(values) for name, values in _numbers(band.covariates).items()}
        labels |= _labels(band.covariates)
    labels = {name: values for name, values in labels.items() if values.max(initial=0) > 0}
    columns = [band.wrong.astype(float), *numbers.values()]
    columns += [_held_out_mean(values, shifts, band.fold) for values in labels.values()]
    # A tree asks one thing at a time, and never finds what only two things together tell.
    columns += [
        _held_out_mean(one * (other.max() + 1) + other, shifts, band.fold)
        for one, other in combinations(labels.values(), 2)
    ]
    tree = DecisionTreeRegressor(
        max_leaf_nodes=_LEAVES, min_samples_leaf=max(20, band.n // 12), random_state=seed
    )
    x = np.nan_to_num(np.column_stack(columns), nan=0.0)
    return np.unique(tree.fit(x, shifts).apply(x), return_inverse=True)[1]


def _numbers(covariates: Covariates) -> dict[str, np.ndarray]:
    """Length, exact tokens and popularity, those that vary; the unknown are put in the middle."""
    numbers = {
        "length": covariates.prompt_length,
        "exact tokens": covariates.exact_tokens,
        "popularity": covariates.log_popularity,
    }
    return {
        name: np.where(np.isnan(values), np.nanmedian(values), values)
        for name, values in numbers.items()
        if values is not None and np.isfinite(values).any() and np.nanstd(values) > 0
    }


def _labels(covariates: Covariates) -> dict[str, np.ndarray]:
    texts = {"relation": covariates.relation, "kind": covariates.kind}
    return {
        name: np.unique(np.asarray(values).astype(str), return_inverse=True)[1]
        for name, values in texts.items()
        if values is not None
    }


def _ranges(values: np.ndarray) -> np.ndarray:
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


def _share_of_lower(ratio: np.ndarray, leaves: np.ndarray, start: float) -> np.ndarray:
    """The lower group's share in each sample's cell, [row]."""
    shares = np.zeros(len(ratio))
    for leaf in np.unique(leaves):
        mine, share = leaves == leaf, float(np.clip(start, 0.05, 0.95))
        for _ in range(60):
            share = float(np.clip((share * ratio[mine] / (share * ratio[mine] + 1 - share)).mean(),
                                  1e-4, 1 - 1e-4))  # fmt: skip
        shares[mine] = share
    return shares


def _between(shares: np.ndarray) -> float:
    """The share of the groups' variance between cells."""
    whole = shares.mean() * (1 - shares.mean())
    return float(1 - (shares * (1 - shares)).mean() / whole) if whole > 0 else np.nan


def _p_within(look: Look, shares: np.ndarray, own: Band) -> float:
    mixed = (shares > PURE) & (shares < 1 - PURE)
    if mixed.sum() < _FEWEST:
        return np.nan
    values = look.shifts[mixed]
    size = effective_size(values, None if own.entity is None else own.entity[mixed])
    return dip_p(dip(values), round(size))


def _belief_auroc(lower: np.ndarray, band: Band) -> float:
    """AUROC of the clean belief for the groups, within ŷ, by the nearest samples of other folds.

    Any smooth function of the belief counts, not only a rising one.
    """
    areas, sizes = [], []
    for mine in (band.wrong, ~band.wrong):
        if mine.sum() >= _FEWEST and 0 < lower[mine].sum() < mine.sum():
            score = _nearest_share(band.belief[mine], lower[mine], band.fold[mine])
            areas.append(auroc(lower[mine].astype(int), score))
            sizes.append(mine.sum())
    return float(np.average(areas, weights=sizes)) if areas else np.nan


def _rule_auroc(look: Look, band: Band, own: Band, *, seed: int) -> float:
    """The AUROC that groups of middling margin would have, given how reliably beliefs are read.

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


def _finder(look: Look, own: Band) -> float:
    """The groups' gap under the whole-question cut over that under the knockout.

    Groups that a missed E_Q makes are gone when the whole question is hidden: near 0.
    """
    if not own.has("question") or not 0 < look.lower.sum() < len(look.lower):
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
