"""How many questions would decide: against worlds drawn by another hand."""

from __future__ import annotations

import numpy as np
import pytest
from test_pathways_looks import planted

from anchorscope.pathways.diagnosis.probe_reads import ProbeReads
from anchorscope.pathways.one_law import Known
from anchorscope.pathways.two_pathways.looks import PROBES, Logits, look_closely
from anchorscope.pathways.two_pathways.needed import MOST, TARGET, needed
from anchorscope.pathways.two_pathways.own_case import own_case
from anchorscope.pathways.two_pathways.planted import Plan
from anchorscope.records import Estimate
from anchorscope.stats.intervals import Draws, rate


def pushed(size: float):
    """Half of the samples are pushed back by so much."""
    return lambda belief, rng: belief - size * np.sign(belief) * rng.integers(0, 2, len(belief))


def brute_force(plan: Plan, n: int, *, worlds: int) -> Estimate:
    """The share of fresh worlds of n samples in which two pathways are shown.

    Beliefs, groups and noise are drawn anew, by the law that `planted` draws from: of each probe's
    noise one part is shared, and the other falls as one over the number of answers.
    """
    shown = []
    for seed in range(worlds):
        rng = np.random.default_rng((77, seed))
        belief = rng.choice([-3.0, 3.0], n) + rng.normal(size=n)
        group = rng.random(n) < plan.share
        error = {p: 0.2 * rng.normal(size=n) for p in PROBES}
        clean = {p: belief + error[p] for p in PROBES}
        own = {p: rng.normal(size=n) for p in ("a", "b")}
        own["paper"] = (own["a"] + own["b"]) / 2**0.5
        jolt, learning = rng.normal(size=n), plan.learning
        knocked, control = {}, {}
        for at, p in enumerate(PROBES):
            push = plan.apart[p] * plan.noise[p] * np.sign(belief) * group
            shared = learning.shared[at] ** 0.5 * jolt
            knocked[p] = clean[p] - push + shared
            knocked[p] += (learning.own[at] * learning.n / n) ** 0.5 * own[p]
            control[p] = clean[p] + 0.07 * (jolt + rng.normal(size=n))
        known = Known(
            fold=np.arange(n) % 5,
            predicted=(belief > 0).astype(float),
            belief=np.mean([*clean.values()], axis=0),
        )
        looks = look_closely(
            Logits(clean=clean, knockout=knocked, control=control), known,
            Draws(seed=seed, resamples=200), laws=("curve",), roads=("shifts",),
        )  # fmt: skip
        shown.append(any(look.shown and look.told < 0.75 for look in looks.values()))
    return rate(np.array(shown))


def test_at_the_named_number_fresh_worlds_show_it_as_often_as_said():
    plan = own_case(*planted(pushed(2.2), n=300))
    assert plan is not None
    found = needed(plan, seed=0, worlds=20)
    assert found.samples.low < found.samples.value < found.samples.high
    few, many = (
        brute_force(plan, round(n), worlds=30) for n in (found.samples.low, found.samples.high)
    )
    assert few.low <= TARGET <= many.high  # the interval holds the crossing
    assert many.value > 0.6 and few.value < 1.0


def test_an_effect_of_the_runs_own_size_is_planted():
    """Humps 2.2 apart under noise of 0.5·0.99 and a law's own scatter: about four spreads."""
    plan = own_case(*planted(pushed(2.2), n=4000))
    assert plan is not None
    assert plan.apart["paper"] == pytest.approx(2.2 / 0.495, rel=0.1)
    assert plan.share == pytest.approx(0.5, abs=0.03)
    assert plan.noise["paper"] == pytest.approx(0.495, rel=0.1)


@pytest.mark.parametrize("push", [1.6, 2.2])
def test_a_small_run_is_not_taken_for_a_smaller_effect(push: float):
    """Fitting the law blurs the humps of 200 samples; what is planted is what was there before."""
    plans = [own_case(*planted(pushed(push), n=200, seed=seed)) for seed in range(10)]
    apart = [plan.apart["paper"] for plan in plans if plan is not None]
    assert np.median(apart) == pytest.approx(push / 0.495, rel=0.12)


def test_noise_that_probes_do_not_share_falls_with_the_answers():
    """Half of the variance is shared: a's noise falls to it, the paper probe's faster."""
    plan = own_case(*planted(pushed(2.2), n=4000))
    assert plan is not None
    shared, now = 0.495**2 / 2, plan.noise["a"] ** 2
    assert now == pytest.approx(2 * shared, rel=0.15)
    assert plan.learnt_from(4000).noise == pytest.approx(plan.noise)
    assert plan.learnt_from(8000).noise["a"] ** 2 == pytest.approx(1.5 * shared, rel=0.15)
    assert plan.learnt_from(10**9).noise["a"] ** 2 == pytest.approx(shared, rel=0.25)
    assert plan.learnt_from(8000).noise["paper"] < plan.noise["paper"]


def test_one_hump_is_out_of_reach_however_many_are_asked():
    plan = own_case(*planted(pushed(0.0), n=300))
    assert plan is not None and plan.apart["paper"] < 2
    found = needed(plan, seed=0, worlds=10)
    assert np.isnan(found.samples.value) and found.now.value == 0
    assert found.limit == "two humps (dip test)"


def test_samples_drawn_are_whole_entities_that_count_anew():
    logits, known = planted(pushed(2.2), n=200)
    known = Known(fold=known.fold, predicted=known.predicted, belief=known.belief,
                  entity=np.arange(200) // 4)  # fmt: skip
    plan = own_case(logits, known)
    assert plan is not None
    drawn = plan.drawn(1000, np.random.default_rng(0))
    assert len(drawn.known.fold) == 1000 and MOST > 1000
    assert drawn.known.entity is not None
    assert np.array_equal(np.bincount(drawn.known.entity), np.full(250, 4))
    beliefs = drawn.known.belief.reshape(250, 4)
    own = {tuple(row) for row in known.belief.reshape(50, 4)}
    assert {tuple(row) for row in beliefs} <= own


@pytest.mark.parametrize(
    ("low", "value", "right", "why"),
    [
        (0.6, 0.7, 100, ""),
        (0.45, 0.55, 30, "it has only 30 right answers to learn from"),
        (0.45, 0.55, 100, "with enough answers of both kinds: read the doubtful verdicts"),
        (0.51, 0.53, 100, "the probe is at chance"),  # shuffled labels read as well
    ],
)
def test_a_probe_at_chance_is_told_why(low, value, right, why):
    reads = ProbeReads(layer=3, layers=5, right=right, wrong=120, shuffled=(0.48, 0.54),
                       auroc=Estimate(value, low, 0.8, 220))  # fmt: skip
    assert reads.at_chance == bool(why)
    assert why in reads.why
