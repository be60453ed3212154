"""The strict gap, and an interval that includes the probes' own uncertainty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kit.bands import made_band

from anchorscope.config import Config
from anchorscope.pathways.fold_layers import (
    PARTS,
    drawn_parts,
    entity_parts,
    gap_with_interval,
    layer_influence,
    same_gap,
    smoothed_variance,
    strict_gap,
)
from anchorscope.probes.folds import training_rows
from anchorscope.simulate import Truth
from anchorscope.stats.logistic import class_weights, fit_many
from benchmarks.error_rates import judge_world


def test_the_group_is_side_as_and_the_effect_side_bs():
    band = made_band(n=300, lost=0.7, spread=2.0)
    (a, a_cut), (b, b_cut) = ((band.side(p), band.side(p, "knockout")) for p in ("a", "b"))
    chance = [1 / (1 + np.exp(-np.where(b > 0, x, -x))) for x in (b, b_cut)]
    moved, flipped = 100 * (chance[1] - chance[0]), (a > 0) != (a_cut > 0)
    assert strict_gap(band) == pytest.approx(moved[flipped].mean() - moved[~flipped].mean())
    assert same_gap(band) < strict_gap(band)  # the circle makes it deeper


def test_the_interval_counts_what_the_parts_move_and_not_what_a_mean_over_draws_evens_out():
    rng = np.random.default_rng(0)
    times = drawn_parts(40, seed=0)
    weight = rng.normal(0, 1, 40)
    moved = times @ (weight - weight.mean())  # a gap that is a sum over parts has this variance:
    variance = np.square(weight - weight.mean()).sum()
    assert smoothed_variance(moved, times) == pytest.approx(variance, rel=0.15)
    noisy = [smoothed_variance(moved + rng.normal(0, 3, len(times)), times) for _ in range(50)]
    drawn = variance + 9  # of each of 200 draws; its noise is in 40 covariances, half taken off
    assert np.mean(noisy) == pytest.approx(variance + 40 / 200 / 2 * drawn, rel=0.1)

    sets, by_band = [moved + shift for shift in (0.0, 1.0)], np.where(times[:, 0] > 0, 2.0, 0.0)
    still = np.zeros(len(times))
    found = gap_with_interval([-9.0, -11.0, np.nan], [*sets, sets[0]], times, by_band=still)
    assert found.value == -10
    assert found.high - found.value == pytest.approx(1.96 * variance**0.5, rel=0.1)
    bagged = gap_with_interval([-9.0, -11.0], sets, times, by_band=by_band)
    assert bagged.value == pytest.approx(-10 + by_band.mean())
    assert bagged.high - bagged.low > found.high - found.low
    broken = gap_with_interval([-9.0], [np.full(len(times), np.nan)], times, by_band=still)
    assert broken.value == -9 and np.isnan([broken.low, broken.high]).all()


@pytest.mark.parametrize("width", [6, 200])
def test_one_newton_step_moves_readings_as_a_probe_fitted_without_the_part(width):
    """With fewer columns than rows, and with more: two ways to solve the same equations."""
    rng = np.random.default_rng(1)
    n, C = 300, 1.0
    band = made_band(n=n, entities_of=2)
    x = rng.normal(size=(n, width)) + np.outer(2 * band.z - 1.0, np.eye(width)[0])
    y = x + 0.5 * rng.normal(size=(n, width))
    part = entity_parts(band.entity, seed=0)
    folds, z = np.unique(band.fold), band.z.astype(float)
    learns = np.array([training_rows(band.fold, held_out=int(f), probe="a") for f in folds])
    weights = class_weights(z, learns, "weights")
    fold = np.searchsorted(folds, band.fold)

    def fitted(counted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        labels = np.broadcast_to(z, counted.shape)
        return fit_many(x, labels, counted, np.full(len(folds), C))

    def logits(w: np.ndarray, c: np.ndarray) -> np.ndarray:
        return np.stack([(s * w[fold]).sum(axis=1) + c[fold] for s in (x, y)])

    w, c = fitted(weights)
    full = logits(w, c)
    stretch = np.linspace(0.5, 2, len(folds))  # of a calibration, by fold
    calibrated = stretch[fold] * full[0] + fold
    moved, directions = layer_influence(
        x, y, np.stack([calibrated, calibrated]), z=band.z, fold=band.fold, part=part, C=C,
        balance="weights",
    )  # fmt: skip
    assert directions[0] == pytest.approx(stretch[:, None] * w, abs=1e-4)
    for number in (0, 7, 20):
        really = stretch[fold] * (logits(*fitted(weights * (part != number))) - full)
        guess = moved[0, :, :, number]
        assert np.corrcoef(really.ravel(), guess.ravel())[0, 1] > 0.97
        assert np.linalg.norm(guess - really) < 0.35 * np.linalg.norm(really)


def test_all_samples_of_an_entity_are_in_one_part():
    entity = (np.arange(300) // 3).astype(str)
    part = entity_parts(entity, seed=0)
    assert part.max() + 1 == PARTS
    assert all(len(set(part[entity == name])) == 1 for name in entity)


def test_the_interval_covers_the_mean_gap_of_other_worlds():
    config = Config(model="x", data=("x",), resamples=100, fold_seeds=1)
    truth = Truth(world="one-mechanism", samples=160, layers=1, width=8)
    found = [
        judge_world(replace(truth, seed=seed), config=config, worlds=0).finding.gap
        for seed in range(30)
    ]
    middle = np.mean([gap.value for gap in found])
    assert np.mean([gap.low <= middle <= gap.high for gap in found]) >= 0.85
    assert np.mean([gap.high - gap.low for gap in found]) < 65  # and says something
