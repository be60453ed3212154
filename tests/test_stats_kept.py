"""Draws that are kept: the same bytes as those of a generator of their own."""

from __future__ import annotations

import numpy as np
import pytest

from anchorscope.pathways import one_mechanism
from anchorscope.pathways.refit import _norm_ratio
from anchorscope.stats import drawing, kept
from anchorscope.stats.ranking import pairs_in_order


@pytest.fixture(autouse=True)
def nothing_kept():
    kept._kept.clear()
    yield
    kept._kept.clear()


def test_noise_of_every_shape_is_that_of_a_generator_of_its_own(monkeypatch):
    shapes = [(2, 20, 7), (3, 5), (2, 50, 30), (2, 50, 29), (1,), (59, 40)]
    alone = [np.random.default_rng(4).standard_normal(shape) for shape in shapes]
    for room in (kept._KEPT_BYTES, 8 * 1000, 0):
        monkeypatch.setattr(kept, "_KEPT_BYTES", room)
        for shape, noise in zip(shapes, alone, strict=True):
            assert np.array_equal(kept.normals(*shape, seed=4), noise)
    other = np.random.default_rng(5).standard_normal(3)
    assert np.array_equal(kept.normals(3, seed=5), other)


def test_noise_that_is_kept_is_drawn_once_and_cannot_be_changed():
    first = kept.normals(2, 50, seed=0)
    assert np.shares_memory(first, kept.normals(4, 10, seed=0))
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0.0


@pytest.mark.parametrize("simulations", [1, 10, 500])
def test_pairs_of_noise_come_in_the_same_blocks_kept_or_not(monkeypatch, simulations):
    monkeypatch.setattr(one_mechanism, "_BLOCK", 3 * 40)
    rng = np.random.default_rng(1)
    sizes = [min(3, simulations - at) for at in range(0, simulations, 3)]
    alone = [rng.standard_normal((2, size, 40)) for size in sizes]
    for room in (kept._KEPT_BYTES, 0):
        monkeypatch.setattr(kept, "_KEPT_BYTES", room)
        drawn = list(one_mechanism._drawn_noise(40, 1, simulations))
        assert all(np.array_equal(*pair) for pair in zip(drawn, alone, strict=True))
        monkeypatch.setattr(one_mechanism, "_CACHED", 2 * 40)  # two simulations at a time
        few = list(one_mechanism._noise(40, 1, simulations))
        assert max(of.shape[1] for of in few) == min(2, simulations)
        assert np.array_equal(np.concatenate(few, axis=1), np.concatenate(alone, axis=1))


def test_labels_are_known_again_by_what_they_say_and_not_by_where_they_lie():
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
