"""Five questions asked of readings whose law is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kit.bands import made_band
from sklearn.metrics import roc_auc_score

from anchorscope.pathways.band import Band, band_within, choose_band, side_overlap
from anchorscope.pathways.effect_tests import between_sides, effect, share_of_question, under_retest
from anchorscope.pathways.finding import (
    examine,
    find,
    pooled,
    shows_two_pathways,
    together,
)
from anchorscope.pathways.groups import (
    ALPHA_LOOK,
    EXPLAINED,
    Explained,
    HumpTest,
    look_for_groups,
)
from anchorscope.pathways.power import cut_noise, plant, power
from anchorscope.probes.probe_set import Readings
from anchorscope.records import Estimate
from anchorscope.stats.humps import dip, dip_p, unimodal_p
from anchorscope.stats.intervals import Draws

DRAWS = Draws(seed=0, resamples=100)
N = 400


def coin(seed: int, n: int = N) -> np.ndarray:
    return (np.random.default_rng(seed).random(n) < 0.5).astype(float)


def loudest(band: Band) -> tuple[HumpTest, Explained]:
    """The look with the smallest p, and what explains its groups."""
    look = find([examine(band, DRAWS)], dict.fromkeys(("half", "fifth"), 1.0)).best
    assert look.explained is not None
    return look, look.explained


# The band of layers


def layered(separations: list[float], n: int = 300) -> Readings:
    """Clean logits of layers that tell the classes apart more or less well."""
    rng = np.random.default_rng(0)
    z, shared = np.arange(n) % 2, rng.normal(size=n)
    own = rng.normal(size=(n, len(separations)))
    logits = (2 * z - 1.0)[:, None] * separations + 0.9 * shared[:, None] + 0.4 * own
    return Readings(
        ids=tuple(map(str, range(n))),
        z=z,
        fold=np.arange(n) % 5,
        probes=("paper", "a", "b"),
        logits={"clean": np.stack([logits] * 3), "knockout": np.stack([-logits] * 3)},
    )


def test_the_band_holds_the_layers_within_one_standard_error_of_the_best():
    readings = layered([0.2, 0.9, 1.0, 0.98, 0.6])
    z, clean = readings.z, readings.of("paper")
    areas = [roc_auc_score(z, layer) for layer in clean.T]
    rng, best, drawn = np.random.default_rng(1), clean[:, int(np.argmax(areas))], []
    for _ in range(400):
        rows = rng.integers(len(z), size=len(z))
        drawn.append(roc_auc_score(z[rows], best[rows]))
    expected = [k + 1 for k, area in enumerate(areas) if area >= max(areas) - np.std(drawn)]
    assert list(choose_band(readings)) == expected == [3, 4]


def test_the_band_does_not_look_at_the_knockout():
    readings = layered([0.2, 0.9, 1.0, 0.98, 0.6])
    other = {**readings.logits, "knockout": np.zeros_like(readings.logits["clean"])}
    assert choose_band(replace(readings, logits=other)) == choose_band(readings)


def test_without_any_area_there_is_no_band():
    assert band_within(np.array([np.nan, np.nan]), 0.1) == ()


def test_sides_overlap_as_displacements_in_random_directions_show():
    rng = np.random.default_rng(0)
    folds, layers, width = 2, 3, 20
    shared = rng.normal(size=(folds, layers, width))
    sides = [shared + 1.2 * rng.normal(size=shared.shape) for _ in range(2)]
    moved = [4.0, 1.0, 9.0]
    scale = np.sqrt(moved)[:, None] / np.sqrt(width)
    seen = []
    for fold in range(folds):
        away = scale * rng.normal(size=(40_000, layers, width))
        a, b = (np.einsum("nlw,lw->n", away, side[fold]) for side in sides)
        seen.append(np.corrcoef(a, b)[0, 1])
    assert side_overlap(*sides, moved) == pytest.approx(np.mean(seen), abs=0.02)


# E1 and E2


def test_the_effect_is_signed_towards_the_prediction_within_each_class():
    band = made_band(n=N, lost=0.5, spread=0.01)
    found = effect(band, "knockout", DRAWS)
    half = -0.5 * np.abs(band.belief)
    assert found.logit.value == pytest.approx(half.mean(), abs=0.05)
    assert found.logit_right.value == pytest.approx(half[~band.wrong].mean(), abs=0.05)
    assert found.logit_wrong.value == pytest.approx(half[band.wrong].mean(), abs=0.05)
    assert found.points.value < 0 and found.shown


def test_beliefs_that_grow_surer_are_no_effect():
    found = effect(made_band(n=N, lost=-0.5, spread=0.01), "knockout", DRAWS)
    assert found.logit.value > 0 and found.p == 1 and not found.shown


def test_one_class_that_loses_its_belief_is_an_effect():
    band = made_band(n=N)
    lost = np.where(made_band(n=N).wrong, 0.8, -0.8)  # the mean over all is about zero
    found = effect(made_band(n=N, lost=lost, spread=0.1), "knockout", DRAWS)
    assert abs(found.logit.value) < 0.4 and found.logit_wrong.high < 0 and found.shown
    assert band.n == N


def test_what_the_control_does_as_well_is_no_effect():
    band = made_band(n=N, lost=0.9)
    same = {**band.logits, "neutral": band.logits["knockout"]}
    found = effect(replace(band, logits=same), "knockout", DRAWS)
    assert (found.points.value, found.flips.value) == (0, 0) and not found.shown


def test_a_control_that_takes_belief_away_cannot_tell_of_no_effect():
    band = made_band(n=N, lost=0.5)
    control = {
        **band.logits,
        "neutral": band.logits["knockout"],
        "question": band.logits["knockout"],
    }
    still = {**band.logits, **dict.fromkeys(("knockout", "question"), band.logits["neutral"])}
    same, none = (
        find([examine(replace(band, logits=logits), DRAWS)], {"half": 0.9, "fifth": 0.9})
        for logits in (control, still)
    )
    assert (same.name, none.name) == ("cannot-tell", "no-effect")
    assert "control takes belief away" in same.why


def test_an_effect_is_told_in_the_unit_of_the_run():
    band = made_band(n=N, lost=0.5, margin=0.2)  # ŷ is seldom sure: relative changes are larger
    points, percent = (
        examine(band, DRAWS, unit=unit).effects["knockout"].points.value
        for unit in ("points", "relative")
    )
    assert percent < 1.2 * points < 0


def test_the_share_of_the_whole_questions_effect():
    band = made_band(n=N, lost=0.2, whole=0.8, spread=0.01)
    share = share_of_question(band, "knockout", DRAWS)
    assert share.value == pytest.approx(0.25, abs=0.02) and share.low < 0.25 < share.high
    assert np.isnan(share_of_question(band, "content", DRAWS).value)  # not among the passes


# E3


def test_a_samples_own_loss_comes_back_and_a_coin_does_not():
    own = made_band(n=N, lost=coin(1), again=coin(1))
    tossed = made_band(n=N, lost=coin(1), again=coin(2))
    for band in (own, tossed):
        assert between_sides(band, DRAWS).shown  # two probes read the same state
    assert under_retest(own, DRAWS).shown
    assert not under_retest(tossed, DRAWS).shown


def test_sides_that_overlap_must_agree_on_more():
    band = made_band(n=N, lost=0.3)
    seen = between_sides(band, DRAWS).value.value
    assert seen > 0.5  # the jolt is the same for both
    assert not between_sides(replace(band, overlap=seen), DRAWS).shown


def test_sides_that_agree_all_but_perfectly_can_still_agree_on_more():
    band = made_band(n=N, lost=coin(1))
    a, others = band.probes.index("a"), dict(band.logits)
    for name, logits in band.logits.items():  # side b reads what side a does, but for a trifle
        trifle = 0.01 * np.random.default_rng(7).standard_normal(logits.shape[1])
        others[name] = np.stack([logits[a], logits[a], logits[a] + trifle])
    close = replace(band, logits=others, overlap=0.99)
    found = between_sides(close, DRAWS)
    assert found.value.value > 0.999 and found.tested and found.shown


def test_few_samples_read_twice_are_no_retest():
    band = made_band(n=N, lost=coin(1))
    again = {
        name: np.where(np.arange(N) < 59, read, np.nan) if name.startswith("retest") else read
        for name, read in band.logits.items()
    }
    assert not under_retest(replace(band, logits=again), DRAWS).tested


@pytest.mark.parametrize("half", [0.9, 0.0])
def test_a_coin_toss_is_one_law_whatever_the_power(half):
    """The run sees its groups, and the retest shows that they are not the samples' own."""
    shown, tossed = (
        find([examine(made_band(n=N, lost=coin(1), again=coin(seed)), DRAWS)], power)
        for seed in (1, 2)
        for power in [{"half": half, "fifth": half}]
    )
    assert (shown.name, tossed.name) == ("two-pathways", "uniform")
    assert "other groups" in tossed.why


# E4


@pytest.mark.parametrize("shape", ["uniform", "skewed", "t2"])
def test_one_hump_of_any_shape_is_seldom_taken_for_two(shape):
    rng = np.random.default_rng(3)
    draw = {
        "uniform": lambda: rng.uniform(size=100),
        "skewed": lambda: rng.gamma(2.0, size=100),
        "t2": lambda: rng.standard_t(2, size=100),
    }[shape]
    values = [draw() for _ in range(60)]
    p = np.array([
        (unimodal_p(v, len(v), seed=number), dip_p(dip(v), len(v)))
        for number, v in enumerate(values)
    ])  # fmt: skip
    assert (p[:, 0] <= 0.05).mean() <= 0.106  # 0.05, and two standard errors of 60 draws
    assert (p.min(axis=1) <= ALPHA_LOOK).mean() <= 0.034  # as the looks use it


def test_humps_four_spreads_apart_are_found_more_often_than_by_the_uniform():
    rng, smooth, uniform = np.random.default_rng(0), [], []
    for seed in range(40):
        values = rng.normal(size=100) + 4 * (np.arange(100) % 2)
        smooth.append(unimodal_p(values, 100, seed=seed) <= ALPHA_LOOK)
        uniform.append(dip_p(dip(values), 100) <= ALPHA_LOOK)
    assert sum(smooth) >= 20 and sum(smooth) > sum(uniform)


@pytest.mark.parametrize(("p", "grouped"), [(0.008, True), (0.009, False), (0.02, False)])
def test_six_looks_share_the_five_percent(p, grouped):
    rows = np.ones(4, dtype=bool)
    look = HumpTest(
        within="both", road="shifts", rows=rows, unit=np.ones(4), shifts=np.zeros(4), lower=rows,
        p_dip=p, p_uniform=p, bic=10.0, kappa=Estimate(0.9, 0.8, 1.0, 4),
        flips=Estimate(0.5, 0.3, 0.7, 4),
    )  # fmt: skip
    assert look.grouped is grouped


def test_humps_that_do_not_flip_are_no_groups():
    """Two clear humps far from the boundary: nothing that a prediction depends on."""
    band = made_band(n=N, margin=12.0, lost=0.0, spread=0.2)
    shift = 3.0 * coin(1) * band.towards
    cuts = {c: band.logits[c] - shift for c in ("knockout", "retest-knockout", "question")}
    looks = examine(replace(band, logits={**band.logits, **cuts}), DRAWS).looks
    seen = [look for look in looks.values() if look.p_dip <= ALPHA_LOOK]
    assert seen and not any(look.grouped for look in seen)


def test_two_classes_with_one_skewed_hump_each_are_not_two_humps():
    """Put together they have two modes; neither class has two on its own."""
    rng = np.random.default_rng(2)
    band = made_band(n=600, spread=0.0, error=0.05)
    skew = np.where(band.wrong, 1, -1) * rng.gamma(1.0, 2.0, 600)
    cuts = {"knockout": band.logits["clean"] - band.towards * skew}
    looks = look_for_groups(replace(band, logits={**band.logits, **cuts}), DRAWS)
    assert not looks["both", "shifts"].p_dip <= ALPHA_LOOK


# E5


def labelled_band(lost: np.ndarray, **labels: np.ndarray) -> Band:
    return made_band(n=len(lost), lost=lost, spread=0.4, labels=labels)


def test_cells_do_not_explain_groups_that_are_within_each_kind():
    rng = np.random.default_rng(0)
    relation = rng.integers(0, 2, 600)
    lost = (rng.random(600) < np.where(relation == 1, 0.85, 0.15)).astype(float)
    _, why = loudest(labelled_band(lost, relation=relation.astype(str)))
    assert 0.3 < why.cells < EXPLAINED  # true: 1 - 0.85 * 0.15 / 0.25 = 0.49
    assert why.still_two and why.by == ""


def test_groups_that_the_belief_does_not_tell_exclude_a_rule_of_it():
    _, why = loudest(made_band(n=600, lost=coin(4, 600)))
    assert why.belief_auroc < 0.6 < why.rule_auroc and why.belief_excluded


def test_a_belief_that_is_read_badly_excludes_nothing():
    reads = {"cells": 0.1, "belief": 0.1, "p_within": 0.001, "finder": np.nan}
    blind = Explained(belief_auroc=0.51, rule_auroc=0.6, **reads)
    assert not blind.belief_excluded and not blind.still_two and blind.by == ""


# The word


def test_a_world_without_groups_is_named_by_what_the_run_could_have_seen():
    examined = [examine(made_band(n=N, lost=0.6), DRAWS)]
    weak, strong = ({"half": half, "fifth": half} for half in (0.79, 0.8))
    assert find(examined, weak).name == "cannot-tell"
    assert find(examined, strong).name in ("uniform", "graded")
    assert find(examined, {"half": np.nan, "fifth": np.nan}).name == "cannot-tell"


def test_groups_of_a_missed_span_that_go_with_a_kind_too_are_named_by_the_finder():
    reads = {"belief": 0.1, "p_within": 0.5, "belief_auroc": 0.5, "rule_auroc": 0.9}
    kinds, finder = (
        Explained(cells=0.9, finder=part, **reads) for part in (1.0, 0.1)
    )  # a finder of 0.1 is also in cells
    assert (kinds.by, finder.by) == ("kinds", "finder")
    examined = examine(made_band(n=N, lost=coin(1)), DRAWS)
    keys = [key for key, look in examined.looks.items() if look.grouped][:2]
    assert len(keys) == 2
    for order in ((kinds, finder), (finder, kinds)):
        looks = {
            key: replace(examined.looks[key], explained=why)
            for key, why in zip(keys, order, strict=True)
        }
        one = replace(examined, looks=looks)
        assert find([one], {"half": 1.0, "fifth": 1.0}).by == "finder"


def test_untested_conditions_are_named():
    band = made_band(n=N, lost=coin(1))
    few = {name: band.logits[name] for name in ("clean", "knockout")}
    finding = find([examine(replace(band, logits=few), DRAWS)], {"half": 1.0, "fifth": 1.0})
    assert finding.name == "two-pathways" and finding.untested == ("question", "retest")


def test_power_is_the_share_of_planted_worlds_in_which_the_rule_finds_two_pathways():
    bands = [made_band(n=300, spread=0.5, folds_seed=seed) for seed in (0, 1)]
    quick = power(bands, share=0.5, lost=0.9, worlds=range(3), seed=7)
    whole = []
    for number in range(3):
        rng = np.random.default_rng((7, number))
        planted = plant(bands, [cut_noise(b) for b in bands], share=0.5, lost=0.9, rng=rng)
        draws = Draws(seed=int(rng.integers(2**31)), resamples=100)
        finding = find([examine(band, draws) for band in planted], {"half": 1.0, "fifth": 1.0})
        whole.append(finding.name == "two-pathways")
        assert shows_two_pathways(planted, draws) == whole[-1]
    assert quick == whole and sum(whole) > 0


def test_a_planted_loss_takes_the_beliefs_away_from_a_share():
    band = made_band(n=2000, spread=0.3)
    (planted,) = plant([band], [cut_noise(band)], share=0.5, lost=1.0, rng=np.random.default_rng(0))
    moved = -band.towards * (planted.both("knockout") - planted.both())
    lost = moved > np.abs(band.belief) / 2
    assert lost.mean() == pytest.approx(0.5, abs=0.05)
    assert planted.both("knockout")[lost].mean() == pytest.approx(0, abs=0.2)
    assert moved[~lost].mean() == pytest.approx(0, abs=0.2)


def test_sets_of_folds_are_combined():
    assert together([0.01]) == 0.01
    assert together([0.01, 0.02, 0.9]) == pytest.approx(0.04)  # twice the median
    assert together([0.6, 0.7, 0.9]) == 1.0 and np.isnan(together([np.nan, np.nan, 0.1]))
    one = pooled([Estimate(1.0, 0.0, 2.0, 9), Estimate(3.0, 2.0, 4.0, 9)])
    assert one.value == 2.0 and one.high - one.value > 1.0  # wider than either
