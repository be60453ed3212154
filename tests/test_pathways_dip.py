"""The dip against a linear programme, and its own law."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from anchorscope.stats.humps import dip, dip_p


def by_linear_programme(values) -> float:
    """The smallest distance to a function that is convex up to a mode and concave after it."""
    x, counts = np.unique(values, return_counts=True)
    n, k = counts.sum(), len(x)
    upper = np.cumsum(counts) / n
    lower = upper - counts / n
    best = 1.0
    for mode in range(k):
        # Unknowns: the function up to the mode (its limit from the left), from the mode on, d.
        size = k + 2
        rows, ends = [], []

        def add(at, weights, end, rows=rows, ends=ends, size=size):
            row = np.zeros(size)
            row[at] = weights
            rows.append(row)
            ends.append(end)

        for j in range(k):
            before, after = (j, j) if j < mode else (j + 1, j + 1) if j > mode else (j, j + 1)
            for place, target in ((before, lower[j]), (after, upper[j])):
                add([place, -1], [1, -1], target)
                add([place, -1], [-1, -1], -target)
        for j in range(1, k - 1):
            if j == mode:
                continue
            here = j + (j > mode)
            left, right = 1 / (x[j] - x[j - 1]), 1 / (x[j + 1] - x[j])
            sign = 1 if j < mode else -1
            add([here - 1, here, here + 1], sign * np.array([-left, left + right, -right]), 0)
        for j in range(k):
            add([j, j + 1], [1, -1], 0)
        goal = np.zeros(size)
        goal[-1] = 1
        found = linprog(
            goal, A_ub=np.array(rows), b_ub=ends, bounds=[(0, 1)] * (size - 1) + [(0, 1)]
        )
        best = min(best, found.fun)
    return best


@pytest.mark.parametrize("seed", range(6))
def test_dip_is_the_smallest_distance_to_one_hump(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(6, 25))
    for values in (
        rng.normal(size=n),
        np.concatenate([rng.normal(size=n), rng.normal(6, 1, n)]),
        rng.integers(0, 5, n).astype(float),  # ties
    ):
        assert dip(values) == pytest.approx(
            max(by_linear_programme(values), 0.5 / len(values)), abs=1e-4
        )


def test_known_values():
    assert dip(np.arange(100.0)) == pytest.approx(0.005)  # evenly spread: the least possible
    assert dip(np.repeat([0.0, 1.0], 50)) == pytest.approx(0.25, abs=1e-4)  # two heaps: the most
    assert dip(np.ones(10)) == pytest.approx(0.05)  # one heap
    assert np.isnan(dip(np.array([1.0, 2.0, 3.0])))
    assert np.isnan(dip(np.array([1.0, 2.0, np.nan, 4.0, 5.0])))


def test_dip_knows_neither_place_nor_scale_nor_order():
    rng = np.random.default_rng(2)
    values = np.concatenate([rng.normal(size=80), rng.normal(3, 1, 60)])
    assert dip(1000 - 7 * rng.permutation(values)) == pytest.approx(dip(values), abs=1e-12)


@pytest.mark.parametrize("n", [30, 120, 300])
def test_p_is_uniform_under_the_uniform_and_small_under_two_humps(n):
    rng = np.random.default_rng(n)
    p = np.array([dip_p(dip(rng.random(n)), n) for _ in range(400)])
    assert np.mean(p <= 0.05) == pytest.approx(0.05, abs=0.03)
    assert np.mean(p <= 0.5) == pytest.approx(0.5, abs=0.08)
    two = np.concatenate([rng.normal(0, 1, n // 2), rng.normal(6, 1, n - n // 2)])
    assert dip_p(dip(two), n) <= 0.01
    assert np.isnan(dip_p(np.nan, n))
