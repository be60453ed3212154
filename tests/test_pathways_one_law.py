"""The one law: what kinds of question and the clean belief account for, and what is left."""

from __future__ import annotations

import numpy as np
import pytest

from anchorscope.pathways.one_law import Predictors, factors_of, one_law, shrunken
from anchorscope.probes.folds import Covariates
from anchorscope.stats.drawing import effective_size
from anchorscope.stats.humps import dip, dip_p


def predictors(belief, *, factors=(), fold=None) -> Predictors:
    n = len(belief)
    return Predictors(
        fold=np.arange(n) % 5 if fold is None else fold,
        predicted=(belief > 0).astype(float),
        belief=belief,
        factors=tuple(np.unique(factor, return_inverse=True)[1] for factor in factors),
    )


def test_levels_of_one_size_are_shrunk_as_a_random_intercept_says():
    """Balanced one-way layout: the textbook's mean times its reliability."""
    rng = np.random.default_rng(0)
    level = np.repeat(np.arange(12), 20)
    values = rng.normal(size=12)[level] + rng.normal(size=240)
    table = values.reshape(12, 20)
    within = table.var(axis=1, ddof=1).mean()
    between = table.mean(axis=1).var(ddof=1) - within / 20
    kept = between / (between + within / 20)
    wanted = kept * (table.mean(axis=1) - values.mean())
    assert shrunken(values, np.ones(240), level)[::20] == pytest.approx(wanted, rel=1e-10)


def test_levels_that_say_nothing_take_nothing_out():
    rng = np.random.default_rng(1)
    values = rng.normal(size=300)
    assert not shrunken(values, np.ones(300), np.arange(300)).any()  # each level alone
    assert not shrunken(values, np.ones(300), np.zeros(300, dtype=int)).any()  # one level
    alternating = np.tile([1.0, -1.0], 150)  # every level of two has the mean of all
    assert not shrunken(alternating, np.ones(300), np.repeat(np.arange(150), 2)).any()


def test_two_displacements_by_kind_are_two_humps_until_the_kind_is_taken_out():
    rng = np.random.default_rng(2)
    clean = rng.normal(0, 2, 600)
    kind = rng.choice(["yes/no", "name"], 600)
    other = clean - 4.0 * np.sign(clean) * (kind == "name") + 0.5 * rng.normal(size=600)
    mine = predictors(clean, factors=[kind])
    before, after = (one_law(clean, other, mine, law=law).residual for law in ("line", "curve"))
    assert dip_p(dip(before), 600) < 0.002 and dip_p(dip(after), 600) > 0.2
    assert after.std() == pytest.approx(0.5, rel=0.1)
    other_kinds = predictors(clean, factors=[rng.permutation(kind)])
    assert one_law(clean, other, other_kinds).residual.std() > 0.9 * before.std()


def test_a_kind_with_a_slope_of_its_own_is_taken_out_too():
    rng = np.random.default_rng(3)
    clean = rng.normal(0, 2, 800)
    kind = rng.choice(["a", "b"], 800)
    other = np.where(kind == "a", clean, 0.0) + 0.3 * rng.normal(size=800)
    left = one_law(clean, other, predictors(clean, factors=[kind]), law="curve").residual
    assert left.std() == pytest.approx(0.3, rel=0.12)


def test_the_curve_takes_out_what_the_belief_decides():
    rng = np.random.default_rng(4)
    clean = rng.normal(0, 2, 900)
    other = clean - 3 * np.sign(clean) * ((np.abs(clean) > 1) & (np.abs(clean) < 2.2))
    other = other + 0.3 * rng.normal(size=900)
    line, curve = (one_law(clean, other, predictors(clean), law=law) for law in ("line", "curve"))
    assert curve.residual.var() < 0.5 * line.residual.var()
    assert (curve.fitted + curve.residual) == pytest.approx(other)


def test_noise_that_grows_with_the_margin_is_seen_to_grow():
    rng = np.random.default_rng(5)
    clean = rng.uniform(-4, 4, 3000)
    other = clean + (0.2 + 0.5 * np.abs(clean)) * rng.normal(size=3000)
    noise = one_law(clean, other, predictors(clean)).noise
    small, large = (noise[(np.abs(clean) > low) & (np.abs(clean) < low + 0.5)].mean()
                    for low in (0.0, 3.5))  # fmt: skip
    assert large / small > 2.5
    assert np.sqrt((noise**2).mean()) == pytest.approx(
        one_law(clean, other, predictors(clean)).spread
    )


def test_a_class_too_small_for_a_fold_takes_its_own_line():
    """Not that of the other class, which may lie elsewhere."""
    clean = np.r_[np.linspace(1, 3, 20), np.linspace(-3, -1, 20)]
    other = np.where(clean > 0, clean - 5, clean)
    fold = np.r_[np.arange(20) % 10, np.zeros(20, dtype=int)]  # two wrong ones in each fold
    fit = one_law(clean, other, predictors(clean, fold=fold), law="line")
    assert fit.residual == pytest.approx(0, abs=1e-12)


def test_numbers_become_levels_and_constants_are_left_out():
    n = 90
    covariates = Covariates(
        log_popularity=np.full(n, np.nan),
        prompt_length=np.arange(n, dtype=float),
        relation=np.full(n, "capital"),
        kind=np.where(np.arange(n) % 2, "name", "date"),
        exact_tokens=np.arange(n) % 3,
    )
    kind, both, tokens, length = factors_of(covariates)
    assert len(set(kind)) == len(set(both)) == 2
    assert len(set(tokens)) == 3 and 6 <= len(set(length)) <= 8


def test_entities_that_agree_count_as_one():
    rng = np.random.default_rng(6)
    entity = np.repeat(np.arange(40), 10)
    own = rng.normal(size=400)
    assert effective_size(own, None) == effective_size(own, np.arange(400)) == 400
    assert effective_size(rng.normal(size=40)[entity], entity) == pytest.approx(40)
    assert effective_size(own, entity) > 250
