"""Hartigan's dip: how far a sample is from every distribution with one hump.

The dip is the smallest distance (largest difference of distribution functions) between the
sample's own distribution and any unimodal one. Written from the description in J. A. Hartigan and
P. M. Hartigan, "The Dip Test of Unimodality", Annals of Statistics 13 (1985).

The package diptest 0.12 is under the GPL, this one under Apache-2.0, so it can only check ours:
over 2,000 samples without ties the statistics differ by 1e-16 at most, over 1,500 the p-values by
0.02 (0.009 where p < 0.1). It is 50 to 200 times faster, and exact where ours is 1e-5 off (ties).
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

import numpy as np

FEWEST = 4  # below this no sample can show two humps
_FEW = 64  # points that a loop takes no longer for


def dip(values: np.ndarray) -> float:
    """The dip statistic of a sample, at least 1 / (2 n); NaN for fewer than four values."""
    x = np.sort(np.asarray(values, dtype=np.float64))
    n = len(x)
    if n < FEWEST or not np.isfinite(x).all():
        return np.nan
    if x[0] == x[-1]:
        return 1 / (2 * n)  # one value only: a single hump of no width
    x = _spread(x)
    steps = np.arange(n + 1) / n
    lower, upper = steps[:-1], steps[1:]  # the distribution function before and after each value
    first, last, found = 0, n - 1, 0.0
    while True:  # the interval that must hold the mode shrinks until nothing is gained
        below = first + _hull(x[first : last + 1], lower[first : last + 1])
        above = first + _hull(-x[first : last + 1], -upper[first : last + 1], turned=True)
        gap, left, right = _widest(x, lower, upper, below, above)
        if gap <= found:
            return found / 2
        outside = (
            _misfit(x, lower, upper, below[below <= left]),
            _misfit(x, upper, lower, above[above >= right]),
        )
        found = max(found, *outside)
        if gap <= found or (left, right) == (first, last):
            return max(gap if (left, right) == (first, last) else found, 1 / n) / 2
        first, last = left, right


def dip_p(statistic: float, n: int) -> float:
    """The chance of a dip at least this large in n draws from a uniform distribution.

    The uniform is the unimodal distribution whose dip is largest in the limit, so for any other
    one-hump law the true chance is smaller: the test errs on the side of one hump.
    """
    if not np.isfinite(statistic) or n < FEWEST:
        return np.nan
    sizes, levels, quantiles = _table()
    scaled = np.sqrt(n) * statistic
    # Interpolated between the two nearest sizes, on the scale where the law hardly moves.
    column = [
        np.interp(np.log(n), np.log(sizes), quantiles[:, level]) for level in range(len(levels))
    ]
    return float(np.interp(scaled, column, 1 - levels, left=1.0, right=1 - levels[-1]))


def _spread(x: np.ndarray) -> np.ndarray:
    """The sorted values with equal ones pulled apart by next to nothing.

    A heap of equal values is a narrow peak: only at the mode can a one-hump law follow it.
    """
    gaps = np.diff(x)
    if (gaps > 0).all():
        return x
    step = gaps[gaps > 0].min() * 1e-4 / len(x)
    starts = np.flatnonzero(np.concatenate([[True], gaps > 0]))
    place = np.arange(len(x)) - np.repeat(starts, np.diff(np.append(starts, len(x))))
    return (x - x[0]) + place * step


def _hull(x: np.ndarray, y: np.ndarray, *, turned: bool = False) -> np.ndarray:
    """The corners of the greatest convex function below the points, as positions in order.

    `turned`: the points come negated, which makes it the least concave function above them.
    """
    if turned:
        x, y = x[::-1], y[::-1]
    places = _without_bumps(x, y)
    xs, ys = x[places].tolist(), y[places].tolist()
    kept: list[int] = []
    for k in range(len(xs)):
        while len(kept) > 1:
            i, j = kept[-2], kept[-1]
            if (ys[j] - ys[i]) * (xs[k] - xs[j]) < (ys[k] - ys[j]) * (xs[j] - xs[i]):
                break
            kept.pop()
        kept.append(k)
    corners = places[kept]
    return len(x) - 1 - corners[::-1] if turned else corners


def _without_bumps(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The positions of points that may be corners, a few dozen of thousands.

    A point on or above the line between two others is none: those of neighbours are looked at all
    at once, time and again, since a loop over all points takes most of a dip's time.
    """
    places = np.arange(len(x))
    while len(places) > _FEW:
        run, rise = np.diff(x[places]), np.diff(y[places])
        corner = rise[:-1] * run[1:] < rise[1:] * run[:-1]
        if corner.all():
            break
        places = places[np.concatenate([[True], corner, [True]])]
    return places


def _widest(
    x: np.ndarray, lower: np.ndarray, upper: np.ndarray, below: np.ndarray, above: np.ndarray
) -> tuple[float, int, int]:
    """The largest distance between the two hulls, and the interval it leaves for the mode."""
    at_below = np.interp(x[below], x[above], upper[above]) - lower[below]
    at_above = upper[above] - np.interp(x[above], x[below], lower[below])
    i, j = int(np.argmax(at_below)), int(np.argmax(at_above))
    if at_below[i] > at_above[j]:
        left = int(below[i])
        return float(at_below[i]), left, int(above[above >= left].min())
    right = int(above[j])
    return float(at_above[j]), int(below[below <= right].max()), right


def _misfit(x: np.ndarray, side: np.ndarray, other: np.ndarray, corners: np.ndarray) -> float:
    """The largest distance of the steps from the hull through these corners."""
    if len(corners) < 2:
        return 0.0
    part = slice(int(corners[0]), int(corners[-1]) + 1)
    line = np.interp(x[part], x[corners], side[corners])
    return float(np.abs(other[part] - line).max())


@cache
def _table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sizes, levels, and the quantiles [size, level] of √n · dip under the uniform."""
    text = resources.files("anchorscope.stats").joinpath("dip_table.json").read_text("utf-8")
    table = json.loads(text)
    return tuple(np.array(table[key]) for key in ("sizes", "levels", "quantiles"))  # type: ignore
