"""Estimates with intervals: bootstrap means, Wilson's shares, differences, Holm's correction.

`entity` ([question], any labels) says which questions are about one thing (stats/drawing.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from anchorscope.records import Estimate
from anchorscope.stats.drawing import design_effect, drawn_sums, entities_in, shared_entities

LEVEL = 0.95
ALPHA = 0.05  # a p-value up to which a test rejects
Z = float(ndtri((1 + LEVEL) / 2))  # the normal quantile that belongs to LEVEL
NOTHING = Estimate(np.nan, np.nan, np.nan, 0)  # what was not measured


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The bootstrap behind an interval: its seed and its number of resamples."""

    seed: int = 0
    resamples: int = 1000


class Means(NamedTuple):
    """One mean per column, [column] each; NaN for an empty group, no interval for one sample."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: np.ndarray


def bootstrap_mean(
    values: np.ndarray, *, seed: int, resamples: int = 1000, entity: np.ndarray | None = None
) -> Estimate:
    """The mean over questions with its bootstrap interval; no interval for fewer than two.

    scipy.stats.bootstrap draws the same rows (tested), but takes 1.3 to 4 times as long, refuses a
    single value, and moves the last digit in a third of the intervals.
    """
    values = np.asarray(values, dtype=np.float64)
    n, number = len(values), shared_entities(entity, len(values))
    if n == 0 or np.isnan(values).any():
        return Estimate(np.nan, np.nan, np.nan, n)
    # Sorted, so that the order of the questions does not matter.
    order = np.argsort(values) if number is None else np.lexsort((values, number))
    values, number = values[order], None if number is None else number[order]
    if n == 1 or (number is not None and number.max() == 0):  # nothing to draw
        return Estimate(float(values.mean()), np.nan, np.nan, n)
    columns = values[:, None] if number is None else np.column_stack([values, np.ones(n)])
    sums = drawn_sums(columns, seed=seed, resamples=resamples, entity=number)
    size = n if number is None else sums[:, 1]
    return percentile_interval(float(values.mean()), sums[:, 0] / size, n)


def percentile_interval(value: float, drawn: np.ndarray, n: int) -> Estimate:
    """The value with the 95 % interval of its draws [resample].

    A draw without a number (one that lost a group) does not count; where most of them have none,
    or the value itself is NaN, there is no interval.
    """
    finite = drawn[np.isfinite(drawn)]
    if not np.isfinite(value) or len(finite) < len(drawn) / 2:
        return Estimate(float(value), np.nan, np.nan, n)
    low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(value), float(low), float(high), n)


def rate(hits: np.ndarray, *, entity: np.ndarray | None = None) -> Estimate:
    """The share of hits with its Wilson interval; NaN for no questions.

    A bootstrap, of questions or of entities, would give 0 of 300 an interval of no width; Wilson's
    reaches up to 1.3 %. So questions about one entity do not change the formula but the number of
    answers in it, which is divided by their design effect. scipy's binomtest gives the same to
    4e-16 (tested), 100 times slower, and refuses n = 0.
    """
    hits = np.asarray(hits, dtype=np.float64)
    n = len(hits)
    if n == 0 or np.isnan(hits).any():
        return Estimate(np.nan, np.nan, np.nan, n)
    share, alone = float(hits.mean()), n / design_effect(hits, shared_entities(entity, n))
    middle = (share + Z**2 / (2 * alone)) / (1 + Z**2 / alone)
    reach = Z / (1 + Z**2 / alone) * np.sqrt(share * (1 - share) / alone + Z**2 / (4 * alone**2))
    # The clips only undo rounding: an interval always holds its own share.
    low, high = min(max(middle - reach, 0.0), share), max(min(middle + reach, 1.0), share)
    return Estimate(share, float(low), float(high), n)


def difference(one: Estimate, other: Estimate) -> Estimate:
    """`one - other` with an interval for two separate groups, from their own intervals.

    Recovers each group's variance from its interval (Zou and Donner 2008; for shares it is
    Newcombe's interval, and statsmodels' to 3e-16), so that a gap can be checked by hand. n is
    that of the smaller group.
    """
    value = one.value - other.value
    down = math.hypot(one.value - one.low, other.high - other.value)
    up = math.hypot(one.high - one.value, other.value - other.low)
    return Estimate(value, float(value - down), float(value + up), min(one.n, other.n))


def p_of_interval(gap: Estimate) -> float:
    """The two-sided p of no difference, read from the interval's end on the side of zero."""
    reach = gap.value - gap.low if gap.value > 0 else gap.high - gap.value
    return float(2 * ndtr(-Z * abs(gap.value) / reach)) if reach > 0 else np.nan


def difference_of_means(
    values: np.ndarray, group: np.ndarray, draws: Draws, *, entity: np.ndarray | None = None
) -> Estimate:
    """Mean of group 1 less that of group 0, with the interval of two separate means.

    An entity may have questions in both groups: where entities are drawn, both means are taken
    from the same draw.
    """
    number = shared_entities(entity, len(values))
    options: dict[str, Any] = {"seed": draws.seed, "resamples": draws.resamples}
    if number is None:
        parts = [values[(group == which) & ~np.isnan(values)] for which in (1, 0)]
        return difference(*(bootstrap_mean(part, **options) for part in parts))
    both, member = np.column_stack([values] * 2), np.column_stack([group == 1, group == 0])
    drawn, n = drawn_means(both, member, **options, entity=number)
    member = member & ~np.isnan(both)
    one, other = _divide(np.where(member, both, 0.0).sum(axis=0), n)
    apart = drawn[:, 0] - drawn[:, 1]
    if (entities_in(member, number) < 2).any():
        apart = np.full(draws.resamples, np.nan)
    return percentile_interval(float(one - other), apart, int(n.min()))


def weighted(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of separate estimates, weighted by n; estimates without a value are left out."""
    finite = [e for e in estimates if np.isfinite(e.value)]
    n = sum(e.n for e in finite)
    if not finite:
        return NOTHING
    value = sum(e.n * e.value for e in finite) / n
    down = np.sqrt(sum((e.n * (e.value - e.low)) ** 2 for e in finite)) / n
    up = np.sqrt(sum((e.n * (e.high - e.value)) ** 2 for e in finite)) / n
    return Estimate(float(value), float(value - down), float(value + up), n)


def group_means(
    values: np.ndarray,
    member: np.ndarray,
    *,
    seed: int = 0,
    resamples: int = 1000,
    entity: np.ndarray | None = None,
) -> Means:
    """The mean of each column over its members, from values and members [question, column].

    The same questions are drawn for every column, so a whole table costs two matrix products.
    """
    drawn, n = drawn_means(values, member, seed=seed, resamples=resamples, entity=entity)
    member = member & ~np.isnan(values)
    number = shared_entities(entity, len(values))
    separate = n if number is None else entities_in(member, number)
    low, high = _ends(drawn, separate >= 2)
    return Means(_divide(np.where(member, values, 0.0).sum(axis=0), n), low, high, n)


def drawn_means(
    values: np.ndarray,
    member: np.ndarray,
    *,
    seed: int,
    resamples: int,
    entity: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Each column's mean over its members in each draw, [resample, column], and their number."""
    member = member & ~np.isnan(values)
    columns = np.hstack([np.where(member, values, 0.0), member])
    sums = drawn_sums(columns, seed=seed, resamples=resamples, entity=entity)
    return _divide(*np.split(sums, 2, axis=1)), member.sum(axis=0)


def holm(p: Sequence[float]) -> np.ndarray:
    """Holm's corrected p-values in the order given; NaN stays NaN and does not count.

    statsmodels' multipletests gives the same bits (2,000 lists), but counts a NaN as a test, and
    is 65 MB for these lines; scipy has no Holm.
    """
    values = np.asarray(p, dtype=np.float64)
    finite = np.flatnonzero(~np.isnan(values))
    order = finite[np.argsort(values[finite], kind="stable")]
    out = np.full(len(values), np.nan)
    steps = values[order] * np.arange(len(order), 0, -1)
    out[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return out


def _divide(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)


def _ends(drawn: np.ndarray, enough: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of each column's interval; draws without members of the group do not count."""
    ends = np.full((2, drawn.shape[1]), np.nan)
    # A column with two members at least keeps one in nearly every draw, so none is all NaN.
    kept = enough & np.isfinite(drawn).any(axis=0)
    if kept.any():
        ends[:, kept] = np.nanquantile(drawn[:, kept], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return ends[0], ends[1]
