"""One law for all samples, and the gap between groups that such a law alone would give.

The law says which knocked-out logit to expect of a clean one: a line for each probe that reads
(every fold has a probe of its own, with its own scale and offset) and each predicted class. A
single line over all folds would turn the probes' differences into differences between samples, and
five probes into five humps. Relation, kind of answer and number of exact tokens may have a law of
their own without being a pathway. So each of these gets an intercept and a slope, shrunk towards
none as a mixed model does (one of a handful of samples says little). And the law may bend: a curve
of the belief takes out what the clean belief alone decides.

The one-mechanism null says that every sample follows this law and noise, and that nothing else
tells samples apart. It is simulated from the observed clean logits, the fitted law and Gaussian
noise; the simulated logits are then grouped exactly as the mode groups. Strict mode takes the group
from probe a and the effect from probe b, so the noise is a pair, and everything depends on the
correlation of the two. The probes share no training question, but they read the *same states*: if
the knockout jolts a state at random, both see that jolt, each along its own direction. Independent
noise would therefore make the band too narrow: any jolt would pass for a second pathway. The other
extreme, the correlation of the observed residuals, takes the very thing in question for granted: if
samples do differ in how much they need the question, that is what both probes see, and the null
would simulate it. Under one mechanism the noise is a jolt in no special direction, and how far two
probes agree on such a jolt can be measured: it is the correlation of their residuals under the
neutral control. The upper end of its interval is what is drawn, so that the control's own error
cannot narrow the band. Without a control the observed correlation is taken: the widest band, which
errs towards one mechanism.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import expit

from anchorscope.config import Delta
from anchorscope.probes.labelled import Covariates
from anchorscope.stats.intervals import Z, percentile_interval

Law = Literal["line", "kinds", "curve"]  # each takes out what the one before does, and more
FEWEST = 4  # samples of a fold and class below which they take the line of all folds of that class
BENDS = (0.1, 0.3, 0.5, 0.7, 0.9)  # quantiles of the belief at which the curve may bend
BENDABLE = 40  # samples of a class below which it has no curve
MOST_LEVELS = 8  # a number is cut into this many levels at most
_QUIET = 0.3  # least noise of any sample, as a share of the mean
_BLOCK = 1_000_000  # numbers of noise at a time
_CACHED = 131_072  # simulated logits at a time: an array of them fits into a core's cache
UNITS: tuple[Delta, ...] = ("points", "logit")


class Fit(NamedTuple):
    """Expected knocked-out logits [question], what is left over, and the noise around them."""

    fitted: np.ndarray
    residual: np.ndarray
    spread: float  # standard deviation of the noise, corrected for the lines' parameters
    noise: np.ndarray  # [question], the same where it may grow or fall with the margin


@dataclass(frozen=True, kw_only=True)
class Predictors:
    """Covariates of each sample for the law, besides its logits, [question] each."""

    fold: np.ndarray
    predicted: np.ndarray  # the class whose line a sample follows
    belief: np.ndarray  # clean logit, the mean of all probes
    factors: tuple[np.ndarray, ...] = ()  # labels as numbers: relation, kind of answer, ...

    def take(self, rows: np.ndarray) -> Predictors:
        """The same of some samples."""
        return Predictors(
            fold=self.fold[rows],
            predicted=self.predicted[rows],
            belief=self.belief[rows],
            factors=tuple(factor[rows] for factor in self.factors),
        )

    def together(self) -> Predictors:
        """The same with one line for both predicted classes."""
        return replace(self, predicted=np.zeros_like(self.predicted))


def factors_of(covariates: Covariates) -> tuple[np.ndarray, ...]:
    """The labels that may have laws of their own, as numbers; those with more than one value."""
    texts = [t for t in (covariates.relation, covariates.kind) if t is not None]
    labels = [np.asarray(t).astype(str) for t in texts]
    if len(labels) == 2:
        labels.append(np.char.add(np.char.add(labels[0], "\t"), labels[1]))
    counts = [covariates.exact_tokens, covariates.prompt_length]
    labels += [_levels(count) for count in counts if count is not None]
    numbers = [np.unique(label, return_inverse=True)[1] for label in labels]
    return tuple(n for n in numbers if len(n) and 0 < n.max() < len(n) - 1)


def one_law(
    clean: np.ndarray, other: np.ndarray, predictors: Predictors, *, law: Law = "curve"
) -> Fit:
    """What is expected of the knocked-out logits, and what is left. Logits without NaN."""
    fitted, parameters = _lines(clean, other, predictors.fold, predictors.predicted)
    if law != "line" and predictors.factors:
        # Twice: a fold with many questions of one kind has a line that the kind has bent.
        kinds = _kind_effects(other - fitted, clean, predictors)
        lines, _ = _lines(clean, other - kinds, predictors.fold, predictors.predicted)
        fitted = lines + _kind_effects(other - lines, clean, predictors)
    if law == "curve":
        fitted = fitted + _curve(other - fitted, predictors)
    residual = other - fitted
    spread = float(np.sqrt((residual**2).sum() / max(len(clean) - parameters, 1)))
    return Fit(fitted, residual, spread, _noise(residual, predictors.belief, spread))


def fit_line(clean: np.ndarray, knockout: np.ndarray, fold: np.ndarray) -> Fit:
    """The least-squares line of each fold alone. Logits [question] without NaN."""
    same = np.zeros(len(clean))
    return one_law(clean, knockout, Predictors(fold=fold, predicted=same, belief=clean), law="line")


def kinds_share(clean: np.ndarray, other: np.ndarray, predictors: Predictors) -> float:
    """The share of the squared residuals that relation, kind and length of question account for."""
    before, after = (
        one_law(clean, other, predictors, law=law).residual for law in ("line", "kinds")
    )
    return float(1 - (after**2).sum() / (before**2).sum()) if (before**2).any() else np.nan


def _lines(
    clean: np.ndarray, other: np.ndarray, fold: np.ndarray, predicted: np.ndarray
) -> tuple[np.ndarray, int]:
    """Each fold's and class's own line, [question], and the number of their parameters."""
    class_number = np.unique(predicted, return_inverse=True)[1]
    numbers, fold_number = np.unique(fold, return_inverse=True)
    group = class_number * len(numbers) + fold_number
    size = np.bincount(group)
    enough = size >= FEWEST
    fitted = _grouped_lines(clean, other, group)
    if not enough[group].all():
        fitted = np.where(enough[group], fitted, _grouped_lines(clean, other, class_number))
    return fitted, 2 * int(enough.sum())


def _grouped_lines(x: np.ndarray, y: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The least-squares line through each group's points at these points, [question]."""
    size = np.maximum(np.bincount(group), 1)
    middle, height = (np.bincount(group, values) / size for values in (x, y))
    apart = x - middle[group]
    variance = np.bincount(group, apart * apart) / size
    together = np.bincount(group, apart * (y - height[group])) / size
    slope = np.divide(together, variance, out=np.zeros(len(size)), where=variance > 0)
    return height[group] + slope[group] * apart


def _kind_effects(residual: np.ndarray, clean: np.ndarray, predictors: Predictors) -> np.ndarray:
    """What each factor's levels add, intercept and slope, within each predicted class."""
    effect = np.zeros_like(residual)
    for mine in (predictors.predicted == which for which in np.unique(predictors.predicted)):
        x = clean[mine] - clean[mine].mean()
        x = x / x.std() if x.std() > 0 else x
        for factor in predictors.factors:
            left = residual[mine] - effect[mine]
            effect[mine] += shrunken(left, np.ones_like(x), factor[mine])
            left = residual[mine] - effect[mine]
            effect[mine] += shrunken(left, x, factor[mine])
    return effect


def shrunken(values: np.ndarray, x: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Each level's coefficient of x less the common one, shrunk, times x, [question].

    `level` [question] are numbers from 0.

    The variance between levels comes from the method of moments; none where it is not above what
    the noise within levels gives. With x = 1 these are a random-intercept model's predictions.
    """
    k = int((np.bincount(level) > 0).sum()) if len(level) else 0
    if k < 2 or k >= len(values):
        return np.zeros_like(values)
    weight, product = np.bincount(level, x * x), np.bincount(level, x * values)
    slope = np.divide(product, weight, out=np.zeros(len(weight)), where=weight > 0)
    total = weight.sum()
    common = product.sum() / total if total > 0 else 0.0
    within = ((values - slope[level] * x) ** 2).sum() / max(len(values) - k, 1)
    room = total - (weight**2).sum() / total if total > 0 else 0.0
    between = (weight * (slope - common) ** 2).sum() - (k - 1) * within
    between = max(0.0, between / room) if room > 0 else 0.0
    if between == 0:
        return np.zeros_like(values)
    kept = weight * between / (weight * between + within)
    return (kept * (slope - common))[level] * x


def _curve(residual: np.ndarray, predictors: Predictors) -> np.ndarray:
    """A smooth function of the belief within each predicted class: a line that bends five times."""
    bent = np.zeros_like(residual)
    for mine in (predictors.predicted == which for which in np.unique(predictors.predicted)):
        if mine.sum() < BENDABLE or not predictors.belief[mine].std() > 0:
            continue
        x = (predictors.belief[mine] - predictors.belief[mine].mean()) / predictors.belief[
            mine
        ].std()
        columns = [np.maximum(x - bend, 0) for bend in np.quantile(x, BENDS)]
        basis = np.column_stack([np.ones_like(x), x, *columns])
        # A touch of ridge on the bends: equal beliefs would leave them undetermined.
        ridge = np.diag([1e-9, 1e-9, *(1e-3 * len(x) for _ in BENDS)])
        weights = np.linalg.solve(basis.T @ basis + ridge, basis.T @ residual[mine])
        bent[mine] = basis @ weights
    return bent


def _noise(residual: np.ndarray, belief: np.ndarray, spread: float) -> np.ndarray:
    """The standard deviation of each sample's noise: a line in the margin, of the size `spread`."""
    size, margin = np.abs(residual), np.abs(belief)
    line = size
    if len(size):
        # scipy's linregress (the same to 4e-15, tested) is 17 times slower and refuses equal x.
        middle, variance = margin.mean(), margin.var()
        together = ((margin - middle) * (size - size.mean())).mean()
        slope = together / variance if variance > 0 else 0.0
        line = size.mean() + slope * (margin - middle)
    line = np.maximum(line, _QUIET * size.mean()) if size.any() else np.ones_like(size)
    return spread * line / np.sqrt((line**2).mean())


def _levels(number: np.ndarray) -> np.ndarray:
    """A number as labels: its own values where they are few, else ranges of about equal size."""
    number = np.asarray(number, dtype=np.float64)
    if len(np.unique(number)) <= MOST_LEVELS:
        return number.astype(str)
    edges = np.nanquantile(number, np.linspace(0, 1, MOST_LEVELS + 1)[1:-1])
    return np.searchsorted(edges, number).astype(str)


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """The correlation of two lists of residuals, which have a mean of zero; 0 without spread."""
    size = np.sqrt((x**2).sum() * (y**2).sum())
    return float(np.clip((x * y).sum() / size, -1, 1)) if size > 0 else 0.0


class Gap(NamedTuple):
    """The mean effect of Q less that of A, beside what one mechanism would give."""

    value: float  # NaN where a group is empty
    low: float  # the null's 95 % band; NaN where it never has two groups
    high: float
    p: float  # how often one mechanism gives a gap at least as deep


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Logits [question] of the probe that groups and of the probe that measures, without NaN."""

    group_clean: np.ndarray
    group_knockout: np.ndarray
    effect_clean: np.ndarray
    effect_knockout: np.ndarray
    strata: np.ndarray  # [question], groups are compared within each value


def gaps(
    pair: Pair,
    laws: tuple[Fit, Fit],
    *,
    seed: int,
    simulations: int = 500,
    points: Delta = "points",
    shared: float | None = None,
) -> dict[Delta, Gap]:
    """The gap in points and in logits, each with its null band.

    `laws` are what the logits of group and effect follow. `points` may be "relative": the unit that
    the ΔP of the run counts in. `shared` is the correlation of the two probes' noise
    (`shared_noise`); None takes the observed one.
    """
    if len(pair.strata) < 3:
        return dict.fromkeys(UNITS, Gap(np.nan, np.nan, np.nan, np.nan))
    observed = _grouped_gaps(pair, pair.group_knockout[None], pair.effect_knockout[None], points)
    drawn = [
        _grouped_gaps(pair, *logits, points)
        for logits in _simulate(laws, seed, simulations, shared)
    ]
    found: dict[Delta, Gap] = {}
    for unit in UNITS:
        simulated = np.concatenate([by_unit[unit] for by_unit in drawn])
        finite = simulated[~np.isnan(simulated)]
        # A null that mostly leaves one group empty has no gap to compare with: no band, no p.
        value, low, high, _ = percentile_interval(observed[unit][0], simulated, len(pair.strata))
        p = (1 + (finite <= value).sum()) / (1 + len(finite)) if np.isfinite(low) else np.nan
        found[unit] = Gap(value, low, high, float(p))
    return found


def shared_noise(group: Fit, effect: Fit) -> float:
    """The most that two probes' noise may go together, from what the control's logits follow.

    The upper end of the 95 % interval of the residuals' correlation (Fisher's z). scipy's pearsonr
    gives the same to 3e-16 (tested), but NaN for residuals without spread.
    """
    n = len(group.residual)
    if n < 4:
        return 1.0
    seen = min(correlation(group.residual, effect.residual), 1 - 1e-9)
    return float(np.tanh(np.arctanh(seen) + Z / np.sqrt(n - 3)))


def _simulate(
    laws: tuple[Fit, Fit], seed: int, simulations: int, shared: float | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Knocked-out logits [simulation, question] of both probes under one mechanism, in blocks."""
    group, effect = laws
    shared = correlation(group.residual, effect.residual) if shared is None else shared
    for first, second in _noise_pairs(len(group.fitted), seed, simulations):
        group_logits = group.fitted + group.noise * first
        if shared >= 1 and group is effect:  # one probe gives both
            yield group_logits, group_logits
            continue
        second = shared * first + np.sqrt(1 - shared**2) * second if shared < 1 else first
        yield group_logits, effect.fitted + effect.noise * second


def _noise_pairs(n: int, seed: int, simulations: int) -> Iterator[np.ndarray]:
    """Pairs of noise [2, simulation, question], as many simulations as a core's cache holds.

    All layers, modes and classes draw the same noise from a seed.
    """
    rng = np.random.default_rng(seed)
    drawn, rows = max(1, _BLOCK // n), max(1, _CACHED // n)
    for start in range(0, simulations, drawn):
        block = rng.standard_normal((2, min(drawn, simulations - start), n))
        for first in range(0, block.shape[1], rows):
            yield block[:, first : first + rows]


def _grouped_gaps(
    pair: Pair, group_knockout: np.ndarray, effect_knockout: np.ndarray, points: Delta
) -> dict[Delta, np.ndarray]:
    """The gap of each simulation [simulation], by unit; NaN where a group is empty.

    ΔP is `delta_p` but for its last digits: that one is exact where both probabilities are next to
    1, and takes longer.
    """
    member = (pair.strata[:, None] == np.unique(pair.strata)).astype(np.float64)
    towards = np.where(pair.effect_clean > 0, 1.0, -1.0)
    before = expit(towards * pair.effect_clean)
    per = 100 / before if points == "relative" else 100.0
    flipped = ((group_knockout > 0) != (pair.group_clean > 0)).astype(np.float64)
    q, n = flipped @ member, member.sum(axis=0)
    changes: dict[Delta, np.ndarray] = {
        "points": per * (_probability(towards * effect_knockout) - before),
        "logit": towards * (effect_knockout - pair.effect_clean),
    }
    return {
        unit: _stratified(change @ member, (change * flipped) @ member, q, n)
        for unit, change in changes.items()
    }


def _probability(logits: np.ndarray) -> np.ndarray:
    """The probability of each logit, written over the logits: scipy's takes several times as long
    where numpy has the processor's vectors for the exponential.
    """
    with np.errstate(over="ignore"):  # of a probability next to 0
        np.exp(np.negative(logits, out=logits), out=logits)
    logits += 1
    return np.reciprocal(logits, out=logits)


def _stratified(total: np.ndarray, in_q: np.ndarray, q: np.ndarray, n: np.ndarray) -> np.ndarray:
    """The mean gap over strata [simulation], each weighted by how much it says of a gap.

    Sums of the effect over all and over Q, and numbers of Q, are [simulation, stratum]; n is the
    number of samples [stratum].
    """
    a = n - q
    gap = in_q / np.maximum(q, 1) - (total - in_q) / np.maximum(a, 1)
    weight = q * a / n  # none where a group is empty
    weights = weight.sum(axis=1)
    mean = (weight * gap).sum(axis=1) / np.where(weights > 0, weights, 1)
    return np.where(weights > 0, mean, np.nan)
