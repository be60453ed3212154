"""The distance from training, against scikit-learn and on a planted shift."""

from __future__ import annotations

import numpy as np
import pytest
from kit.detect_worlds import material
from sklearn.decomposition import PCA

from anchorscope.detect.distance import Distance, learn_distance


def cloud(n: int, seed: int, shift: float = 0.0) -> np.ndarray:
    """Correlated states [question, 1, 12]; the shift goes where they hardly spread."""
    rng = np.random.default_rng(seed)
    spread = np.array([5, 3, 2, *[1] * 8, 0.1])
    states = rng.standard_normal((n, 12)) * spread
    states[:, -1] += shift
    turned, _ = np.linalg.qr(np.random.default_rng(99).standard_normal((12, 12)))
    return (states @ turned)[:, None]


def learnt(n: int = 600) -> tuple[Distance, np.ndarray]:
    x = cloud(n, 0)
    return learn_distance(material(np.arange(n) % 2, {"clean": x}), layer=1), x[:, 0]


def test_it_is_the_mahalanobis_distance_of_scikit_learns_covariance():
    distance, x = learnt()
    scaled = (x.astype(np.float32) - distance.mean) / distance.scale
    precision = PCA(n_components=11).fit(scaled).get_precision()
    want = np.sqrt(np.einsum("qa,ab,qb->q", scaled, precision, scaled))
    assert distance.distances(x) == pytest.approx(want, rel=1e-4)


def test_new_answers_like_the_training_ones_are_spread_evenly_and_others_are_far():
    distance, _ = learnt()
    alike, moved = (distance.place(cloud(4000, 1, shift)[:, 0]) for shift in (0.0, 1.5))
    assert np.quantile(alike, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.06)
    assert np.mean(moved > 0.99) > 0.95
    # Along the direction of widest spread the same step is nothing unusual.
    assert ((alike >= 0) & (alike <= 1)).all()


def test_with_fewer_answers_than_directions_held_out_answers_are_still_the_measure():
    distance, _ = learnt(n=40)
    assert len(distance.directions) == 10
    alike = distance.place(cloud(4000, 1)[:, 0])
    assert np.mean(alike) == pytest.approx(0.5, abs=0.15)


def test_it_is_kept_as_arrays():
    distance, x = learnt()
    again = Distance.restore({**distance.tensors(), "coef": np.zeros(3)})
    assert again is not None
    assert np.array_equal(again.place(x), distance.place(x))
    assert Distance.restore({"coef": np.zeros(3)}) is None
