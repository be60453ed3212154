"""Looks at planted groups: humps of shifts, two laws, and what the clean belief tells."""

from __future__ import annotations

import numpy as np
import pytest

from anchorscope.pathways.one_law import Known, one_law
from anchorscope.pathways.two_pathways.finding import choose_layer, pooled, together
from anchorscope.pathways.two_pathways.looks import Logits, Look, look_closely
from anchorscope.pathways.two_pathways.power import power, shown_in_worlds
from anchorscope.pathways.two_pathways.told import told
from anchorscope.pathways.two_pathways.two_lines import two_lines_p
from anchorscope.probes.readings import Readings
from anchorscope.records import Estimate
from anchorscope.stats.intervals import Draws

DRAWS = Draws(seed=0, resamples=200)


def planted(law, *, n=600, noise=0.5, seed=0, control=0.1) -> tuple[Logits, Known]:
    """Three probes' logits of one belief, knocked out by `law(belief, rng)`."""
    rng = np.random.default_rng(seed)
    belief = rng.choice([-3.0, 3.0], n) + rng.normal(size=n)
    after = law(belief, rng)

    def probes(of: np.ndarray, spread: float) -> dict[str, np.ndarray]:
        jolt = rng.normal(size=n)
        return {p: of + spread * (0.7 * jolt + 0.7 * rng.normal(size=n)) for p in own}

    own = {p: 0.2 * rng.normal(size=n) for p in ("paper", "a", "b")}
    clean = {p: belief + error for p, error in own.items()}
    knocked = {p: v + own[p] for p, v in probes(after, noise).items()}
    random = {p: v + own[p] for p, v in probes(belief, control).items()}
    known = Known(
        fold=np.arange(n) % 5,
        predicted=(belief > 0).astype(float),
        belief=np.mean([*clean.values()], axis=0),
    )
    return Logits(clean=clean, knockout=knocked, control=random), known


def half_pushed(belief, rng):
    return belief - 5 * np.sign(belief) * rng.integers(0, 2, len(belief))


def half_forgotten(belief, rng):
    return np.where(rng.integers(0, 2, len(belief)), 0.0, belief)


def all_pushed(belief, rng):
    return belief - 3 * np.sign(belief)


def by_any_amount(belief, rng):
    return belief - np.sign(belief) * rng.uniform(0, 6, len(belief))


def shown(law, **given) -> set[tuple[str, str]]:
    looks = look_closely(*planted(law, **given), DRAWS, laws=("curve",))
    return {(within, road) for (within, road, _), look in looks.items() if look.shown}


def test_two_doses_are_two_humps_in_every_class():
    assert {("right", "shifts"), ("wrong", "shifts"), ("both", "shifts")} <= shown(half_pushed)


def test_a_belief_that_is_forgotten_makes_two_laws():
    """Beliefs of 3 ± 1 differ so little that the road of shifts sees them as well."""
    assert any(road == "laws" for _, road in shown(half_forgotten, n=1500))


@pytest.mark.parametrize("law", [all_pushed, by_any_amount])
def test_one_law_is_not_two(law):
    assert shown(law) == set()


def test_humps_that_do_not_flip_are_no_pathways():
    """Two doses so small that no verdict changes: two humps, and no Q."""

    def nudged(belief, rng):
        return belief + 2 * np.sign(belief) * rng.integers(0, 2, len(belief))

    looks = look_closely(*planted(nudged, noise=0.2), DRAWS, laws=("curve",))
    both = looks["both", "shifts", "curve"]
    assert both.p_dip < 0.002 and both.kappa.value > 0.8 and not both.shown


def test_two_classes_with_a_skewed_hump_each_are_not_two_humps():
    def skewed(belief, rng):
        return belief + rng.exponential(2, len(belief)) * np.where(belief > 0, -1, 0.3)

    assert shown(skewed, n=2000, noise=0.1) == set()


def test_the_clean_belief_tells_any_smooth_function_of_itself():
    rng = np.random.default_rng(1)
    belief = rng.uniform(0.1, 6, 600)
    known = Known(fold=np.arange(600) % 5, predicted=np.ones(600), belief=belief)
    assert told((belief > 2) & (belief < 4), known) > 0.95  # neither rising nor falling
    assert told(rng.random(600) < 0.5, known) == pytest.approx(0.5, abs=0.08)


def test_two_lines_are_told_from_one_curve_with_uneven_noise():
    rng = np.random.default_rng(2)
    x = rng.uniform(1, 6, 500)
    known = Known(fold=np.zeros(500, dtype=int), predicted=np.ones(500), belief=x)
    two = np.where(rng.integers(0, 2, 500), x, 0.0) + 0.4 * rng.normal(size=500)
    assert two_lines_p(x, one_law(x, two, known), seed=0) <= 1 / 60 + 1e-9
    one = 0.5 * x + 0.3 * x * rng.normal(size=500)
    assert two_lines_p(x, one_law(x, one, known), seed=0) > 0.05


def test_the_p_of_two_lines_is_uniform_enough_under_one():
    rejected = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x = rng.uniform(1, 6, 200)
        known = Known(fold=np.zeros(200, dtype=int), predicted=np.ones(200), belief=x)
        y = 0.7 * x + (0.2 + 0.2 * x) * rng.normal(size=200)
        rejected += two_lines_p(x, one_law(x, y, known), seed=seed, simulations=39) <= 0.05
    assert rejected <= 7  # 5 % of 40 are 2; more than 7 has a chance of one in a thousand


def test_power_grows_with_the_samples():
    few, many = (power(*planted(all_pushed, n=n), DRAWS, worlds=10) for n in (80, 800))
    assert many >= 0.9 and few < many


def test_a_world_is_the_same_whoever_looks_at_it():
    logits, known = planted(by_any_amount, n=150)
    parts = [shown_in_worlds(logits, known, DRAWS, some) for some in (range(3), range(3, 8))]
    assert parts[0] + parts[1] == shown_in_worlds(logits, known, DRAWS, range(8))
    assert len(set(parts[0] + parts[1])) == 2  # some show two pathways, and some do not


@pytest.mark.parametrize(("p_dip", "shown"), [(0.008, True), (0.009, False), (0.04, False)])
def test_a_dip_counts_only_below_a_sixth_of_five_percent(p_dip, shown):
    look = Look(
        within="both",
        road="shifts",
        law="curve",
        n_q=100,
        n_a=100,
        p_dip=p_dip,
        bic=50.0,
        kappa=Estimate(0.9, 0.8, 1.0, 200),
        gap=Estimate(-4.0, -0.5, 0.5, 200),
        p_gap=0.001,
        flips=Estimate(0.9, 0.8, 1.0, 200),
    )
    assert look.shown == shown
    assert look.p == pytest.approx(6 * p_dip)


def test_layer_is_chosen_by_the_clean_probe_where_the_knocked_out_one_favours_another():
    z = np.arange(200) % 2
    noise = np.random.default_rng(0).standard_normal((3, 200))
    clear, blurred, none = 4.0 * z + noise[0], 1.0 * z + noise[1], noise[2]
    clean, knockout = np.stack([blurred, clear, none], 1), np.stack([clear, none, blurred], 1)
    readings = Readings(
        ids=tuple(map(str, z.cumsum() + np.arange(200))),
        z=z,
        fold=np.arange(200) % 5,
        probes=("paper", "a", "b"),
        # The sides favour the third layer, clean and knocked out: they have no say either.
        logits={
            "clean": np.stack([clean, clean[:, [0, 2, 1]], clean[:, [0, 2, 1]]]),
            "knockout": np.stack([knockout] * 3),
        },
    )
    assert choose_layer(readings) == 2


def test_sets_of_folds_are_put_together():
    assert together([0.02]) == 0.02  # one set is not doubled
    assert together([0.01, 0.02, 0.9]) == pytest.approx(0.04)
    assert np.isnan(together([np.nan, np.nan, 0.01]))
    both = pooled([Estimate(1.0, 0.8, 1.2, 9), Estimate(2.0, 1.8, 2.2, 9)])
    assert both.value == 1.5 and both.high - both.low > 2.5
