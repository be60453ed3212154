"""The one-mechanism null: one law for all samples, and the gap that it alone would give.

The law predicts the knocked-out logit from the clean one: a line for each held-out fold (each
fold's probe has a scale and an offset of its own) and each predicted class. Relation, kind of
answer and length may have a law of their own without being a pathway, so that each of these gets an
intercept and a slope, shrunk towards none as a mixed model does. And the law may bend: a curve of
the belief takes out what the clean belief alone decides.

The one-mechanism null says that every sample follows this law and noise. Its logits are simulated
from the clean ones and grouped exactly as the mode groups. Strict mode's two probes read the *same
states*, so that their noise goes together: as far as their residuals do under the neutral control,
at the upper end of the interval. Without a control it is the correlation of the observed residuals,
which assumes one mechanism: the widest band, in its favour.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import expit

from anchorscope.config import Delta
from anchorscope.probes.folds import Covariates
from anchorscope.stats.intervals import Z, percentile_interval

Law = Literal["line", "curve"]  # each takes out what the one before does, and more
FEWEST = 4  # samples of a fold and class below which they take the line of all folds of that class
BENDS = (0.1, 0.3, 0.5, 0.7, 0.9)  # quantiles of the belief at which the curve may bend
BENDABLE = 40  # samples of a class below which it has no curve
MOST_LEVELS = 8  # a number is cut into this many levels at most
_QUIET = 0.3  # least noise of any sample, as a share of the mean
_BLOCK = 1_000_000  # numbers of noise at a time
UNITS: tuple[Delta, ...] = ("points", "logit")


class Fit(NamedTuple):
    """A fitted law: expected knocked-out logits [question], residuals, and their noise."""

    fitted: np.ndarray
    residual: np.ndarray
    spread: float  # standard deviation of the noise, corrected for the lines' parameters
    noise: np.ndarray  # [question], the same where it may grow or fall with the margin


class Predictors(NamedTuple):
    """Covariates of each sample for the law, besides its logits, [question] each."""

    fold: np.ndarray
    predicted: np.ndarray  # the class whose line a sample follows
    belief: np.ndarray  # clean logit, the mean of all probes
    factors: tuple[np.ndarray, ...] = ()  # labels as numbers: relation, kind of answer, ...


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
    """Fit one law of knocked-out logits on clean ones, [question] without NaN."""
    fitted, parameters = _lines(clean, other, predictors.fold, predictors.predicted)
    if law == "curve":
        if predictors.factors:
            # Twice: a fold with many questions of one kind has a line that the kind has bent.
            kinds = _kind_effects(other - fitted, clean, predictors)
            lines, _ = _lines(clean, other - kinds, predictors.fold, predictors.predicted)
            fitted = lines + _kind_effects(other - lines, clean, predictors)
        fitted = fitted + _curve(other - fitted, predictors)
    residual = other - fitted
    spread = float(np.sqrt((residual**2).sum() / max(len(clean) - parameters, 1)))
    return Fit(fitted, residual, spread, _noise(residual, predictors.belief, spread))


def fit_line(clean: np.ndarray, knockout: np.ndarray, fold: np.ndarray) -> Fit:
    """Fit a least-squares line to each fold alone, on logits [question] without NaN."""
    same = np.zeros(len(clean))
    return one_law(clean, knockout, Predictors(fold=fold, predicted=same, belief=clean), law="line")


def _lines(
    clean: np.ndarray, other: np.ndarray, fold: np.ndarray, predicted: np.ndarray
) -> tuple[np.ndarray, int]:
    """Fit a line to each fold and class: fitted values [question], number of parameters."""
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
    """Fitted values of the least-squares line through each group's points, [question]."""
    size = np.maximum(np.bincount(group), 1)
    middle, height = (np.bincount(group, values) / size for values in (x, y))
    apart = x - middle[group]
    variance = np.bincount(group, apart * apart) / size
    together = np.bincount(group, apart * (y - height[group])) / size
    slope = np.divide(together, variance, out=np.zeros(len(size)), where=variance > 0)
    return height[group] + slope[group] * apart


def _kind_effects(residual: np.ndarray, clean: np.ndarray, predictors: Predictors) -> np.ndarray:
    """Effects of each factor's levels, intercept and slope, within each predicted class."""
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
        belief = predictors.belief[mine]
        if mine.sum() < BENDABLE or not belief.std() > 0:
            continue
        x = (belief - belief.mean()) / belief.std()
        columns = [np.maximum(x - bend, 0) for bend in np.quantile(x, BENDS)]
        basis = np.column_stack([np.ones_like(x), x, *columns])
        # A touch of ridge on the bends: equal beliefs would leave them undetermined.
        ridge = np.diag([1e-9, 1e-9, *(1e-3 * len(x) for _ in BENDS)])
        bent[mine] = basis @ np.linalg.solve(basis.T @ basis + ridge, basis.T @ residual[mine])
    return bent


def _noise(residual: np.ndarray, belief: np.ndarray, spread: float) -> np.ndarray:
    """The standard deviation of each sample's noise: a line in the margin, of the size `spread`."""
    size, margin = np.abs(residual), np.abs(belief)
    if not size.any():
        return np.full(len(size), spread)
    line = _grouped_lines(margin, size, np.zeros(len(size), dtype=np.int64))
    line = np.maximum(line, _QUIET * size.mean())
    return spread * line / np.sqrt((line**2).mean())


def _levels(number: np.ndarray) -> np.ndarray:
    """Turn numbers into labels: the values where they are few, else ranges of equal size."""
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
    """The mean effect of Q less that of A, with the null band of one mechanism."""

    value: float  # NaN where a group is empty
    low: float  # the null's 95 % band; NaN where it never has two groups
    high: float
    p: float  # how often one mechanism gives a gap at least as deep


class Pair(NamedTuple):
    """Logits [question] of the probe that groups and of the probe that measures, without NaN."""

    group_clean: np.ndarray
    group_knockout: np.ndarray
    effect_clean: np.ndarray
    effect_knockout: np.ndarray
    strata: np.ndarray  # [question], groups are compared within each value


def gaps(
    pair: Pair,
    laws: tuple[Fit, ...],
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
    """Upper bound on the correlation of two probes' noise, from their fits to the control.

    The upper end of the 95 % interval of the residuals' correlation (Fisher's z). scipy's pearsonr
    gives the same to 3e-16 (tested), but NaN for residuals without spread.
    """
    n = len(group.residual)
    if n < 4:
        return 1.0
    seen = min(correlation(group.residual, effect.residual), 1 - 1e-9)
    return float(np.tanh(np.arctanh(seen) + Z / np.sqrt(n - 3)))


def _simulate(
    laws: tuple[Fit, ...], seed: int, simulations: int, shared: float | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Knocked-out logits [simulation, question] of both probes under one mechanism, in blocks.

    All layers, modes and classes draw the same noise from a seed.
    """
    group, effect = laws
    shared = correlation(group.residual, effect.residual) if shared is None else shared
    rng, n = np.random.default_rng(seed), len(group.fitted)
    block = max(1, _BLOCK // n)
    for start in range(0, simulations, block):
        first, second = rng.standard_normal((2, min(block, simulations - start), n))
        second = shared * first + np.sqrt(1 - shared**2) * second if shared < 1 else first
        yield group.fitted + group.noise * first, effect.fitted + effect.noise * second


def _grouped_gaps(
    pair: Pair, group_knockout: np.ndarray, effect_knockout: np.ndarray, points: Delta
) -> dict[Delta, np.ndarray]:
    """The gap of each simulation [simulation], by unit; NaN where a group is empty.

    The mean over strata, each weighted by q (n - q) / n for q flips of n. ΔP is `delta_p` but for
    its last digits: `delta_p` is exact where both probabilities are next to 1, and takes longer.
    """
    member = (pair.strata[:, None] == np.unique(pair.strata)).astype(np.float64)
    towards = np.where(pair.effect_clean > 0, 1.0, -1.0)
    before = expit(towards * pair.effect_clean)
    per = 100 / before if points == "relative" else 100.0
    flipped = ((group_knockout > 0) != (pair.group_clean > 0)).astype(np.float64)
    q, n = flipped @ member, member.sum(axis=0)  # [simulation, stratum], [stratum]
    weight = q * (n - q) / n  # none where a group is empty
    weights = weight.sum(axis=1)
    changes: dict[Delta, np.ndarray] = {
        "points": per * (expit(towards * effect_knockout) - before),
        "logit": towards * (effect_knockout - pair.effect_clean),
    }
    found: dict[Delta, np.ndarray] = {}
    for unit, change in changes.items():
        in_q = (change * flipped) @ member
        gap = in_q / np.maximum(q, 1) - (change @ member - in_q) / np.maximum(n - q, 1)
        mean = (weight * gap).sum(axis=1) / np.where(weights > 0, weights, 1)
        found[unit] = np.where(weights > 0, mean, np.nan)
    return found
