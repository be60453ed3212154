"""Metrics of scores (higher: more likely wrong), and the agreement of two lists.

AUROC, calibration and risk; Cohen's κ of groups, Pearson's and Spearman's correlation of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from anchorscope.errors import UserError
from anchorscope.records import Estimate
from anchorscope.stats.drawing import class_blocks, count_blocks, drawn_sums, shared_entities
from anchorscope.stats.intervals import Draws, percentile_interval

BINS = 10  # of equal width, for ECE and the reliability diagram
_BLOCK = 250  # resamples at a time
_LOOKED_UP = 4_000_000  # answers times resamples at a time, so that memory stays flat


class Curve(NamedTuple):
    """The points of a curve."""

    x: np.ndarray
    y: np.ndarray


class Difference(NamedTuple):
    """How much higher one AUROC is than another, with interval and two-sided p."""

    value: float
    low: float
    high: float
    p: float


def auroc(z: np.ndarray, score: np.ndarray) -> float:
    """AUROC: the chance that a wrong answer scores above a right one; NaN for one class.

    Ties count half. Computed from ranks; scikit-learn's roc_auc_score (the same to 2e-16, tested)
    takes 20 times as long.
    """
    z, score = _labels_and_scores(z, score)
    wrong = z == z.max(initial=0)
    ones, zeros = int(wrong.sum()), int((~wrong).sum())
    if not (ones and zeros):
        return np.nan
    right = np.sort(score[~wrong])
    below, up_to = (np.searchsorted(right, score[wrong], side).sum() for side in ("left", "right"))
    return float((below + up_to) / 2 / (ones * zeros))


def auroc_interval(
    z: np.ndarray,
    score: np.ndarray,
    *,
    seed: int,
    resamples: int = 1000,
    entity: np.ndarray | None = None,
) -> Estimate:
    """AUROC with its bootstrap interval; questions are drawn within each class.

    Where an entity has several questions, whole entities are drawn, whatever their classes.

    Look-ups instead of scikit-learn's AUROC in each resample (tested against it): 14 ms for 300
    questions and 1,000 resamples, not 3.4 s; scipy.stats.bootstrap over mannwhitneyu takes 150 ms.
    """
    z, score = _labels_and_scores(z, score)
    value = auroc(z, score)
    if np.isnan(value):
        return Estimate(np.nan, np.nan, np.nan, len(z))
    if shared_entities(entity, len(z)) is not None:
        (drawn,) = auroc_draws(z, [score], seed=seed, resamples=resamples, entity=entity)
        return percentile_interval(value, drawn, len(z))
    # Sorted, so that the order of the questions does not change what is drawn; right ones first.
    rising, n = score[np.lexsort((score, z))], int((z == 0).sum())
    right, wrong = np.split(np.arange(len(z)), [n])
    drawn = [
        resampled_auroc(rising, wrong, right, times[n:], times[:n])
        for times in class_blocks(n, len(z) - n, seed=seed, resamples=resamples)
    ]
    return percentile_interval(value, np.concatenate(drawn), len(z))


def resampled_auroc(
    score: np.ndarray,
    wrong: np.ndarray,
    right: np.ndarray,
    of_wrong: np.ndarray,
    of_right: np.ndarray,
) -> np.ndarray:
    """AUROC of each resample, [resample]; NaN where a class is missing.

    `wrong` and `right` are places in `score`; counts are [wrong, resample], [right, resample].
    Cumulated counts turn "how many right answers score lower" into a look-up.
    """
    order = np.argsort(score[right], kind="stable")
    rising, of_right = score[right][order], of_right[order]
    below = np.searchsorted(rising, score[wrong], "left")  # right answers below each wrong one
    upto = np.searchsorted(rising, score[wrong], "right")
    total = np.zeros(of_wrong.shape[1])
    size = max(1, min(_BLOCK, _LOOKED_UP // max(len(wrong), len(right) + 1)))
    for start in range(0, len(total), size):
        part = slice(start, start + size)
        ranks = np.zeros((len(right) + 1, len(total[part])), dtype=np.int32)  # whole numbers: exact
        np.cumsum(of_right[:, part], axis=0, out=ranks[1:])
        lower = ranks[below]
        if (below != upto).any():
            lower = (lower + ranks[upto]) / 2
        total[part] = np.einsum("wr,wr->r", lower, of_wrong[:, part], dtype=np.float64)
    ones, zeros = (times.sum(axis=0, dtype=np.float64) for times in (of_wrong, of_right))
    pairs = ones * zeros
    return np.divide(total, pairs, out=np.full(len(total), np.nan), where=pairs > 0)


def accuracy(z: np.ndarray, logit: np.ndarray) -> float:
    """The share of questions that the logit's sign classifies right; NaN for no questions."""
    z, logit = _labels_and_scores(z, logit)
    return float(np.mean((logit > 0) == (z == 1))) if len(z) else np.nan


def auprc(z: np.ndarray, score: np.ndarray) -> float:
    """Average precision for wrong answers; NaN where a class is missing."""
    from sklearn.metrics import average_precision_score  # slow to import, and for detectors alone

    return float(average_precision_score(z, score)) if len(np.unique(z)) == 2 else np.nan


def brier(z: np.ndarray, probability: np.ndarray) -> float:
    """Brier score: mean squared distance of the probability of z = 1 from z; NaN for none.

    scikit-learn's brier_score_loss (tested) refuses an empty list and differs in the last digit in
    1 of 200 lists.
    """
    return float(np.mean((probability - z) ** 2)) if len(z) else np.nan


def ece(z: np.ndarray, probability: np.ndarray) -> float:
    """Expected calibration error over BINS bins of equal width; NaN for no answers."""
    if not len(z):
        return np.nan
    predicted, true, count = reliability(z, probability)
    return float(np.sum(count * np.abs(predicted - true)) / len(z))


def reliability(
    z: np.ndarray, probability: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean probability, share of wrong answers and count of each bin that has answers, [bin].

    scikit-learn's calibration_curve gives the first two (the same bits, tested) without the counts
    that ECE needs, and puts a probability on a border into the bin below.
    """
    where = np.minimum((probability * BINS).astype(int), BINS - 1)
    count = np.bincount(where, minlength=BINS)
    used = count > 0
    predicted = np.bincount(where, weights=probability, minlength=BINS)[used] / count[used]
    true = np.bincount(where, weights=z, minlength=BINS)[used] / count[used]
    return predicted, true, count[used]


def risk_coverage(z: np.ndarray, score: np.ndarray) -> Curve:
    """Coverage (share answered) and risk (share of wrong ones among them), most trusted first.

    Answers of equal score are answered together, since nothing ranks them.
    """
    order = np.argsort(score, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(score[order]) > 0, True)) + 1
    return Curve(ends / len(z), np.cumsum(z[order])[ends - 1] / ends)


def coverage_at(z: np.ndarray, score: np.ndarray, risk: float) -> float:
    """The largest coverage at a risk of at most `risk`; 0 if there is none."""
    if not len(z):
        return np.nan
    curve = risk_coverage(z, score)
    within = curve.y <= risk
    return float(curve.x[within].max()) if within.any() else 0.0


def prr(z: np.ndarray, score: np.ndarray) -> float:
    """Prediction-rejection ratio, as LM-Polygraph defines it; NaN where a class is missing.

    The mean share of right answers among the k most trusted ones, over every k, less the share
    among all, divided by this difference in the best order. Equal scores count by their mean.
    """
    right = 1 - np.asarray(z, dtype=np.float64)
    if len(np.unique(right)) < 2:
        return np.nan
    _, group, size = np.unique(score, return_inverse=True, return_counts=True)
    trusted = (np.bincount(group, weights=right) / size)[np.sort(group)]
    found, best = (
        np.mean(np.cumsum(order) / np.arange(1, len(order) + 1)) - right.mean()
        for order in (trusted, np.sort(right)[::-1])
    )
    return float(found / best)


def auroc_draws(
    z: np.ndarray,
    scores: Sequence[np.ndarray],
    *,
    seed: int,
    resamples: int,
    entity: np.ndarray | None = None,
) -> np.ndarray:
    """AUROC of each score on the same resamples of the questions, [score, resample].

    Questions are drawn within each class, or entities as a whole, as for a single interval; NaN
    for a draw of entities without one of the classes.
    """
    z = np.asarray(z)
    wrong, right = np.flatnonzero(z == 1), np.flatnonzero(z == 0)
    if not (len(wrong) and len(right)):
        return np.full((len(scores), resamples), np.nan)
    if shared_entities(entity, len(z)) is not None:
        blocks = count_blocks(len(z), seed=seed, resamples=resamples, entity=entity)
        parts = ((times[wrong], times[right]) for times in blocks)
    else:
        sizes, n = (len(wrong), len(right)), len(wrong)
        blocks = class_blocks(*sizes, seed=seed, resamples=resamples, block=_BLOCK)
        parts = ((times[:n], times[n:]) for times in blocks)
    found = [[resampled_auroc(score, wrong, right, *part) for score in scores] for part in parts]
    return np.concatenate([np.stack(part) for part in found], axis=1)


def paired_difference(a: float, b: float, draws: np.ndarray) -> Difference:
    """AUROC a less b, with the interval and p of paired draws of the difference, [resample]."""
    draws = draws[np.isfinite(draws)]  # draws of entities may leave one class alone
    if not len(draws):
        return Difference(np.nan, np.nan, np.nan, np.nan)
    _, low, high, _ = percentile_interval(a - b, draws, 0)
    # One is added because what was observed is itself one possible draw: p is never 0.
    below, above = np.sum(draws <= 0) + 1, np.sum(draws >= 0) + 1
    p = min(1.0, 2 * min(below, above) / (len(draws) + 1))
    return Difference(a - b, low, high, float(p))


def _labels_and_scores(z: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z, score = np.asarray(z), np.asarray(score, dtype=np.float64)
    if z.shape != score.shape or z.ndim != 1:
        raise UserError(f"Labels {z.shape} and scores {score.shape} must be two equal lists.")
    if np.isnan(score).any():
        raise UserError(
            f"{np.isnan(score).sum()} of {len(score)} scores are NaN. Leave these questions out."
        )
    return z, score


def kappa_interval(
    one: np.ndarray, other: np.ndarray, draws: Draws, *, entity: np.ndarray | None = None
) -> Estimate:
    """Cohen's κ with its bootstrap interval over entities.

    Resampling questions is drawing the four cells; an entity with several questions brings all of
    its cells.
    """
    x, y = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    known = ~(np.isnan(x) | np.isnan(y))
    x, y = x == 1, y == 1
    each = np.column_stack([x & y, x & ~y, ~x & y, ~x & ~y]) & known[:, None]
    cells = each.sum(axis=0)
    n, value = int(cells.sum()), float(_kappa(cells[None])[0])
    if np.isnan(value):
        return Estimate(np.nan, np.nan, np.nan, n)
    if shared_entities(entity, len(x)) is None:
        rng = np.random.default_rng(draws.seed)
        drawn = rng.multinomial(n, cells / n, size=draws.resamples)
    else:
        drawn = drawn_sums(each, seed=draws.seed, resamples=draws.resamples, entity=entity)
    return percentile_interval(value, _kappa(drawn), n)


def _kappa(cells: np.ndarray) -> np.ndarray:
    """Cohen's κ of each row of cells [draw, 4], [draw].

    scikit-learn's cohen_kappa_score (the same to 3e-16, tested) takes 2.2 s for 1,000 draws of 300
    questions, not 0.5 ms, and calls one group on one side 0.
    """
    both, first, second, none = cells.T.astype(np.float64)
    n = both + first + second + none
    in_one, in_other = both + first, both + second
    degenerate = (in_one == 0) | (in_one == n) | (in_other == 0) | (in_other == n)
    with np.errstate(invalid="ignore", divide="ignore"):
        seen = (both + none) / n
        chance = (in_one * in_other + (n - in_one) * (n - in_other)) / n**2
        return np.where(degenerate, np.nan, (seen - chance) / (1 - chance))


def correlation_with_draws(
    x: np.ndarray, y: np.ndarray, draws: Draws, *, entity: np.ndarray | None = None
) -> tuple[float, np.ndarray]:
    """Pearson's correlation of two lists [question], and that of each draw of entities, [draw].

    NaN where a side has no spread. All draws are one matrix product: scipy's pearsonr (the same to
    1e-15) needs 750 ms for 1,000 draws of 300, and this 6 ms.
    """
    terms = np.column_stack([np.ones_like(x), x, y, x * x, y * y, x * y])
    sums = drawn_sums(terms, seed=draws.seed, resamples=draws.resamples, entity=entity)
    n, sx, sy, sxx, syy, sxy = np.vstack([terms.sum(axis=0), sums]).T
    with np.errstate(invalid="ignore", divide="ignore"):
        product = (sxx - sx * sx / n) * (syy - sy * sy / n)
        found = (sxy - sx * sy / n) / np.sqrt(np.maximum(product, 0))
    found = np.where(product > 0, np.clip(found, -1, 1), np.nan)
    return float(found[0]), found[1:]


def spearman(x: np.ndarray, y: np.ndarray, *, seed: int, resamples: int = 1000) -> Estimate:
    """Spearman's correlation with its bootstrap interval; NaN below three pairs."""
    n = len(x)
    if n < 3:
        return Estimate(np.nan, np.nan, np.nan, n)
    value = float(_rank_correlation(x[None], y[None])[0])
    rows = np.random.default_rng(seed).integers(n, size=(resamples, n))
    return percentile_interval(value, _rank_correlation(x[rows], y[rows]), n)


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The correlation of ranks in each row; NaN where a row has one value only.

    scipy's spearmanr (tested) takes one row at a time: for 1,000 of 64 pairs 675 ms, not 23.
    """
    from scipy.stats import rankdata  # slow to import, and for the evidence of heads alone

    x, y = (cast(np.ndarray, rankdata(v, axis=1)) for v in (x, y))
    x, y = (v - v.mean(axis=1, keepdims=True) for v in (x, y))
    size = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return np.divide((x * y).sum(axis=1), size, out=np.full(len(x), np.nan), where=size > 0)
