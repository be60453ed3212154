"""Rows that are there and finite, by their bits, against numpy's own words for it."""

from __future__ import annotations

import numpy as np
import pytest

from anchorscope.stats.whole_rows import finite_rows, known_rows

EVERY = np.arange(2**16, dtype=np.uint16).view(np.float16)  # every half there is


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_every_half_alone_and_among_others(kind):
    for column in (EVERY[:, None], np.column_stack([np.ones_like(EVERY), EVERY, -EVERY])):
        with np.errstate(invalid="ignore"):
            states = column.astype(kind)
        assert np.array_equal(known_rows(states), ~np.isnan(states).any(axis=1))
        assert np.array_equal(finite_rows(states), np.isfinite(states).all(axis=1))


def test_rows_that_do_not_lie_together_and_none():
    states = np.array([[1, np.nan, 2], [1, np.inf, 3]], dtype=np.float16)
    assert known_rows(states[:, ::2]).tolist() == [True, True]
    assert known_rows(states).tolist() == [False, True]
    assert finite_rows(states[::-1]).tolist() == [False, False]
    assert finite_rows(states[:, :0]).tolist() == [True, True]
    assert known_rows(states[:0]).tolist() == []
