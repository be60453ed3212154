"""The one-mechanism null: the published picture from nothing, and what lies beyond it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import linregress, pearsonr

from anchorscope.pathways.effects import delta_p
from anchorscope.pathways.one_law import Fit, Gap, Pair, fit_line, gaps, shared_noise


def lines(group_clean, group_knockout, effect_clean, effect_knockout) -> tuple[Fit, Fit]:
    """The lines of the group's and the effect's logits; one line where one probe gives both."""
    fold = np.zeros(len(group_clean), dtype=int)
    group = fit_line(group_clean, group_knockout, fold)
    same = effect_clean is group_clean and effect_knockout is group_knockout
    return group, group if same else fit_line(effect_clean, effect_knockout, fold)


def found_gaps(
    group_clean, group_knockout, effect_clean=None, effect_knockout=None, *, strata=None, **options
) -> dict[str, Gap]:
    """The gaps of logits whose laws are lines; one probe gives both where no effect is named."""
    effect_clean = group_clean if effect_clean is None else effect_clean
    effect_knockout = group_knockout if effect_knockout is None else effect_knockout
    logits = group_clean, group_knockout, effect_clean, effect_knockout
    pair = Pair(
        group_clean=group_clean,
        group_knockout=group_knockout,
        effect_clean=effect_clean,
        effect_knockout=effect_knockout,
        strata=np.zeros(len(group_clean)) if strata is None else strata,
    )
    return gaps(pair, lines(*logits), **{"seed": 0} | options)


def one_noisy_mechanism(n, s, rho, rng):
    z = s * rng.standard_normal(n)
    return z, rho * z + np.sqrt(1 - rho**2) * s * rng.standard_normal(n)


@pytest.mark.parametrize(
    ("s", "rho", "of_flippers"), [(3, 0.9, -35.6), (3, 0.5, -58.1), (5, 0.2, -76.6)]
)
def test_one_noisy_mechanism_draws_the_published_picture(s, rho, of_flippers):
    """The circularity in numbers: a deep curve and a flat one, from a single line and noise."""
    clean, knocked = one_noisy_mechanism(200_000, s, rho, np.random.default_rng(0))
    flipped = (clean > 0) != (knocked > 0)
    effect = delta_p(clean, knocked)
    assert flipped.mean() == pytest.approx(np.arccos(rho) / np.pi, abs=0.005)
    assert effect[flipped].mean() == pytest.approx(of_flippers, abs=0.5)
    assert effect[~flipped].mean() == pytest.approx(0, abs=0.3)


def test_the_band_holds_one_mechanism_as_often_as_it_says():
    outside = 0
    for seed in range(120):
        clean, knocked = one_noisy_mechanism(200, 3, 0.5, np.random.default_rng(seed))
        gap = found_gaps(clean, knocked, seed=seed, simulations=200)["points"]
        outside += not gap.low <= gap.value <= gap.high
    assert 0 <= outside / 120 <= 0.11


def test_two_clouds_lie_beyond_the_band():
    rng = np.random.default_rng(0)
    clean = rng.choice([-2.0, 2.0], 400) + 0.3 * rng.standard_normal(400)
    q = rng.random(400) < 0.5
    knocked = np.where(q, -clean, clean) + 0.2 * rng.standard_normal(400)
    gap = found_gaps(clean, knocked, strata=clean > 0)["logit"]
    assert gap.value < gap.low and gap.p < 0.01
    assert gap.value == pytest.approx(-4, abs=0.3)


def test_the_observed_gap_is_a_plain_difference_of_means():
    rng = np.random.default_rng(3)
    a, b = rng.normal(0, 2, 60), rng.normal(0, 2, 60)
    ka, kb = a + rng.normal(0, 2, 60), b + rng.normal(0, 2, 60)
    flipped = np.sign(a) != np.sign(ka)
    effect = np.sign(b) * (kb - b)
    gap = found_gaps(a, ka, b, kb, simulations=100)["logit"]
    wanted = effect[flipped].mean() - effect[~flipped].mean()
    assert gap.value == pytest.approx(wanted, abs=1e-12)


def test_both_classes_together_are_compared_within_each():
    """The gap of "both" is the coefficient of Q in a regression with a mean for each class."""
    rng = np.random.default_rng(4)
    a, b = rng.normal(0, 2, 80), rng.normal(0, 2, 80)
    ka, kb = a + rng.normal(0, 2, 80), b + rng.normal(-1, 2, 80)
    flipped, wrong = np.sign(a) != np.sign(ka), b > 0
    design = np.column_stack([flipped, wrong, ~wrong]).astype(float)
    coefficient = np.linalg.lstsq(design, np.sign(b) * (kb - b), rcond=None)[0][0]
    gap = found_gaps(a, ka, b, kb, strata=wrong, simulations=100)["logit"]
    assert gap.value == pytest.approx(coefficient, abs=1e-10)


def test_an_empty_group_has_no_gap_and_no_band():
    clean = np.array([-1.0, -2.0, 1.0, 2.0, 3.0])
    for few in (clean, clean[:1]):
        for gap in found_gaps(few, few, simulations=100).values():
            assert np.isnan(gap).all()


def test_lines_are_least_squares_fold_by_fold():
    rng = np.random.default_rng(5)
    x, y, fold = rng.normal(size=50), rng.normal(size=50), np.arange(50) % 3
    line = fit_line(x, y, fold)
    for number in range(3):
        rows = fold == number
        other = linregress(x[rows], y[rows])
        wanted = other.intercept + other.slope * x[rows]
        assert line.fitted[rows] == pytest.approx(wanted, abs=1e-13)
    assert line.spread == pytest.approx(np.sqrt((line.residual**2).sum() / (50 - 6)))


def test_less_shared_noise_means_a_narrower_gap():
    rng = np.random.default_rng(6)
    clean, knocked = one_noisy_mechanism(400, 3, 0.5, rng)
    one, other = (found_gaps(clean, knocked, shared=shared)["logit"] for shared in (1.0, 0.3))
    assert one.low < other.low and one.high < other.high


def test_the_control_says_how_much_noise_two_probes_share():
    rng = np.random.default_rng(7)
    a, b = rng.normal(size=(2, 4000))
    jolt, own = rng.normal(size=4000), rng.normal(size=4000)
    control = lines(a, a + jolt, b, b + 0.8 * jolt + 0.6 * own)
    assert shared_noise(*control) == pytest.approx(np.tanh(np.arctanh(0.8) + 1.96 / 63.2), abs=0.02)


@pytest.mark.parametrize("n", [4, 30, 300])
def test_what_probes_share_is_the_upper_end_of_scipys_interval(n):
    a, b, x, y = np.random.default_rng(n).normal(size=(4, n))
    control = lines(a, a + x, b, b + x + y)
    wanted = pearsonr(*(line.residual for line in control)).confidence_interval(0.95).high
    assert shared_noise(*control) == pytest.approx(wanted, abs=1e-14)
