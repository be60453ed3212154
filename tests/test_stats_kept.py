"""Draws that are kept: the same bytes as those of a generator of their own."""

from __future__ import annotations

import numpy as np
import pytest

from anchorscope.pathways import one_mechanism
from anchorscope.stats import kept


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
        drawn = list(one_mechanism._noise(40, 1, simulations))
        assert all(np.array_equal(*pair) for pair in zip(drawn, alone, strict=True))
