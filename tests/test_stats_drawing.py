"""Draws of the bootstrap: the same bytes whether they are kept or drawn again."""

from __future__ import annotations

import numpy as np

from anchorscope.pathways.strict_tables import _norm_ratio
from anchorscope.stats import drawing
from anchorscope.stats.ranking import pairs_in_order


def test_labels_are_compared_by_value_and_not_by_address():
    labels = np.array(["c", "a", "c", "b"])
    for dtype in (labels.dtype, object):
        entity = labels.astype(dtype)
        assert drawing.shared_entities(entity, 4).tolist() == [2, 0, 2, 1]
        assert drawing.shared_entities(entity[::-1], 4).tolist() == [1, 2, 0, 2]
        entity[3] = "a"
        assert drawing.shared_entities(entity, 4).tolist() == [1, 0, 1, 0]
        entity[:] = ["d", "a", "c", "b"]
        assert drawing.shared_entities(entity, 4) is None


def test_counts_are_those_of_rows_drawn_one_by_one():
    rng, alone = np.random.default_rng(2), np.random.default_rng(2)
    counts = drawing.counts_of_rows(rng, 37, 50)
    drawn = alone.integers(37, size=(50, 37))
    plain = np.array([[(rows == of).sum() for of in range(37)] for rows in drawn])
    assert counts.dtype == np.uint8 and counts.flags.c_contiguous
    assert np.array_equal(counts, plain.T)


def test_a_count_that_does_not_fit_a_byte_is_not_cut_short():
    class Same:
        def integers(self, n, size):
            return np.zeros(size, dtype=np.int64)

    counts = drawing.counts_of_rows(Same(), 300, 2)
    assert counts[0].tolist() == [300, 300] and not counts[1:].any()


def test_pairs_in_order_are_those_of_a_plain_count():
    rng = np.random.default_rng(3)
    wrong, right = rng.integers(0, 6, 20) / 2, np.sort(rng.integers(0, 6, 15) / 2)  # with ties
    of_wrong, of_right = rng.integers(0, 4, (20, 300)), rng.integers(0, 4, (15, 300))
    pair = (wrong[:, None] > right) + 0.5 * (wrong[:, None] == right)
    plain = np.einsum("wr,wk,rk->k", pair, of_wrong, of_right)
    for dtype in (np.uint8, np.int64):
        found = pairs_in_order(wrong, right, of_wrong.astype(dtype), of_right.astype(dtype))
        assert np.array_equal(found, plain)


def test_states_in_halves_are_read_to_the_same_bits_some_rows_at_a_time():
    rng = np.random.default_rng(6)
    x, y = rng.standard_normal((2, 150, 40)).astype(np.float16)
    x[70] = 0
    wide, away = x.astype(np.float64), y.astype(np.float64) - x.astype(np.float64)
    size, moved = (np.linalg.norm(of, axis=1) for of in (wide, away))
    assert _norm_ratio(x, y.astype(np.float64)) == (moved[size > 0] / size[size > 0]).mean()
    assert np.isnan(_norm_ratio(x[70:71], y[70:71].astype(np.float64)))
