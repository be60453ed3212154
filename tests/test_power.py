"""The smallest effect that a run would have found, and its interval."""

from __future__ import annotations

import numpy as np
import pytest
from kit.bands import made_band
from scipy.special import expit, logit

from anchorscope.config import Config
from anchorscope.pathways.finding import ENOUGH
from anchorscope.pathways.power import (
    WORLDS,
    ProbeReads,
    deciding_power,
    power,
    redraw,
    smallest_effects,
    smallest_found,
)
from anchorscope.records import Estimate


@pytest.mark.parametrize(("crossing", "steep"), [(0.4, 20.0), (0.7, 12.0), (0.2, 60.0)])
def test_the_interval_holds_the_true_crossing(crossing, steep):
    """Worlds found by a known curve: 95 % of the intervals hold where it crosses 80 %."""
    rng = np.random.default_rng(0)

    def found(size: float, _: int) -> bool:
        return bool(rng.random() < expit(logit(ENOUGH) + steep * (size - crossing)))

    intervals = [smallest_found(found, most=1.0, worlds=40) for _ in range(60)]
    held = np.mean([found.low <= crossing <= found.high for found in intervals])
    assert held >= 0.88
    assert np.nanmedian([found.value for found in intervals]) == pytest.approx(crossing, abs=0.08)
    assert (
        np.median([min(found.high, 1) - found.low for found in intervals]) < 0.45
    )  # and says something


def test_what_is_never_found_is_beyond_reach():
    never = smallest_found(lambda size, number: False, most=0.5, worlds=20)
    assert np.isnan(never.value) and never.low > 0.3 and never.high == np.inf


def test_more_samples_find_less():
    """A band whose belief is read well: with 4n a smaller share of Q is enough than with n."""
    band = made_band(n=160, seed=1, spread=0.5)
    config = Config(model="x", data=("x",))
    small, _, large = smallest_effects([band], config, worlds=10)
    assert (small.n, large.n) == (160, 640)
    assert large.share.value < min(small.share.value, 0.5) or np.isnan(small.share.value)
    assert 0.2 < large.loss.value < 1 and large.delta_p.value < -5
    assert large.delta_p.low <= large.delta_p.value <= large.delta_p.high


def test_below_150_samples_nothing_is_found(monkeypatch):
    monkeypatch.setattr("anchorscope.pathways.power.FACTORS", (1, 2))
    config = Config(model="x", data=("x",))
    few, twice = smallest_effects([made_band(n=76, spread=0.5)], config, worlds=4)
    assert np.isnan([few.loss.value, few.share.value, few.delta_p.value]).all()
    assert twice.n == 152 and np.isfinite(twice.loss.low)


def test_entities_are_drawn_whole_and_count_anew_in_every_set_of_folds():
    bands = [made_band(n=200, seed=3, entities_of=4, folds_seed=s) for s in (0, 1)]
    drawn = redraw(bands, 2, np.random.default_rng(0))
    assert [band.n for band in drawn] == [400, 400]
    entity = drawn[0].entity
    assert entity is not None and np.array_equal(entity, drawn[1].entity)
    assert set(np.unique(entity, return_counts=True)[1]) == {4}
    assert len(np.unique(entity)) == 100
    own = {tuple(row) for row in bands[0].belief.reshape(50, 4)}
    assert {tuple(row) for row in drawn[0].belief.reshape(100, 4)} <= own
    # The same rows of both sets of folds.
    rows = [np.flatnonzero(bands[0].belief == value)[0] for value in drawn[0].belief]
    assert np.array_equal(bands[1].fold[rows], drawn[1].fold)


@pytest.mark.parametrize("spread", [0.3, 6.0])
def test_no_more_worlds_are_planted_than_decide_the_finding(spread):
    bands = [made_band(n=160, spread=spread)]
    found = deciding_power(bands, seed=0)
    every = power(bands, share=0.5, worlds=range(WORLDS), seed=0)
    assert found == every[: len(found)] and len(found) < WORLDS
    assert (np.mean(found) >= ENOUGH) == (np.mean(every) >= ENOUGH) == (spread < 1)
    assert not any(power(bands, share=0.5, lost=0.0, worlds=range(4), seed=0))


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
