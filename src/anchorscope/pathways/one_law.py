"""The one law that all samples may follow: the knocked-out logit that the clean one lets expect.

A line for each probe that reads (every fold has a probe of its own, with its own scale and offset)
and each predicted class. A single line over all folds would turn the probes' differences into
differences between samples, and five probes into five humps.

What is known of a sample beside its belief may have a law of its own without being a pathway: its
relation, its kind of answer, the number of exact tokens. So each of these gets an intercept and a
slope, shrunk towards none as a mixed model does (one of a handful of samples says little). And the
law may bend: a curve of the belief takes out what the clean belief alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from anchorscope.probes.labelled import Covariates
from anchorscope.stats.intervals import Z

Law = Literal["line", "kinds", "curve"]  # each takes out what the one before does, and more
LAWS: tuple[Law, ...] = ("line", "kinds", "curve")
FEWEST = 4  # samples of a fold and class below which they take the line of all folds of that class
BENDS = (0.1, 0.3, 0.5, 0.7, 0.9)  # quantiles of the belief at which the curve may bend
BENDABLE = 40  # samples of a class below which it has no curve
MOST_LEVELS = 8  # a number is cut into this many levels at most
_QUIET = 0.3  # least noise of any sample, as a share of the mean


class Fit(NamedTuple):
    """Expected knocked-out logits [question], what is left over, and the noise around them."""

    fitted: np.ndarray
    residual: np.ndarray
    spread: float  # standard deviation of the noise, corrected for the lines' parameters
    noise: np.ndarray  # [question], the same where it may grow or fall with the margin


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of each sample apart from the logits in question, [question] each."""

    fold: np.ndarray
    predicted: np.ndarray  # the class whose line a sample follows
    belief: np.ndarray  # clean logit, the mean of all probes
    factors: tuple[np.ndarray, ...] = ()  # labels as numbers: relation, kind of answer, ...
    entity: np.ndarray | None = None

    def take(self, rows: np.ndarray) -> Known:
        """That of some samples."""
        return Known(
            fold=self.fold[rows],
            predicted=self.predicted[rows],
            belief=self.belief[rows],
            factors=tuple(factor[rows] for factor in self.factors),
            entity=None if self.entity is None else self.entity[rows],
        )

    def together(self) -> Known:
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


def one_law(clean: np.ndarray, other: np.ndarray, known: Known, *, law: Law = "curve") -> Fit:
    """What is expected of the knocked-out logits, and what is left. Logits without NaN."""
    fitted, parameters = _lines(clean, other, known.fold, known.predicted)
    if law != "line" and known.factors:
        # Twice: a fold with many questions of one kind has a line that the kind has bent.
        kinds = _of_kinds(other - fitted, clean, known)
        lines, _ = _lines(clean, other - kinds, known.fold, known.predicted)
        fitted = lines + _of_kinds(other - lines, clean, known)
    if law == "curve":
        fitted = fitted + _curve(other - fitted, known)
    residual = other - fitted
    spread = float(np.sqrt((residual**2).sum() / max(len(clean) - parameters, 1)))
    return Fit(fitted, residual, spread, _noise(residual, known.belief, spread))


def fit_line(clean: np.ndarray, knockout: np.ndarray, fold: np.ndarray) -> Fit:
    """The least-squares line of each fold alone. Logits [question] without NaN."""
    same = np.zeros(len(clean))
    return one_law(clean, knockout, Known(fold=fold, predicted=same, belief=clean), law="line")


def kinds_share(clean: np.ndarray, other: np.ndarray, known: Known) -> float:
    """The share of the squared residuals that relation, kind and length of question account for."""
    before, after = (one_law(clean, other, known, law=law).residual for law in ("line", "kinds"))
    return float(1 - (after**2).sum() / (before**2).sum()) if (before**2).any() else np.nan


def _lines(
    clean: np.ndarray, other: np.ndarray, fold: np.ndarray, predicted: np.ndarray
) -> tuple[np.ndarray, int]:
    """Each fold's and class's own line, [question], and the number of their parameters."""
    of_class = np.unique(predicted, return_inverse=True)[1]
    numbers, of_fold = np.unique(fold, return_inverse=True)
    group = of_class * len(numbers) + of_fold
    size = np.bincount(group)
    enough = size >= FEWEST
    fitted = _grouped_lines(clean, other, group)
    if not enough[group].all():
        fitted = np.where(enough[group], fitted, _grouped_lines(clean, other, of_class))
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


def _predict(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    # scipy's linregress (the same to 4e-15, tested) is 17 times slower and refuses equal x.
    middle, variance = x.mean(), x.var()
    slope = ((x - middle) * (y - y.mean())).mean() / variance if variance > 0 else 0.0
    return y.mean() + slope * (at - middle)


def _of_kinds(residual: np.ndarray, clean: np.ndarray, known: Known) -> np.ndarray:
    """What each factor's levels add, intercept and slope, within each predicted class."""
    effect = np.zeros_like(residual)
    for mine in (known.predicted == which for which in np.unique(known.predicted)):
        x = clean[mine] - clean[mine].mean()
        x = x / x.std() if x.std() > 0 else x
        for factor in known.factors:
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


def _curve(residual: np.ndarray, known: Known) -> np.ndarray:
    """A smooth function of the belief within each predicted class: a line that bends five times."""
    bent = np.zeros_like(residual)
    for mine in (known.predicted == which for which in np.unique(known.predicted)):
        if mine.sum() < BENDABLE or not known.belief[mine].std() > 0:
            continue
        x = (known.belief[mine] - known.belief[mine].mean()) / known.belief[mine].std()
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
    line = _predict(margin, size, margin) if len(size) else size
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


def upper_correlation(seen: float, n: int) -> float:
    """The upper end of the 95 % interval of a correlation of n pairs (Fisher's z).

    scipy's pearsonr gives the same to 3e-16 (tested), but NaN for residuals without spread.
    """
    if n < 4:
        return 1.0
    return float(np.tanh(np.arctanh(min(seen, 1 - 1e-9)) + Z / np.sqrt(n - 3)))
