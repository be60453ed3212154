"""Tables of effects by pathway, against counting by hand and scipy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kit.piece_inputs import inputs_for, row
from scipy.special import expit
from scipy.stats import binomtest

from anchorscope.evidence.answer_only import answer_only_table
from anchorscope.evidence.patching import PATCHES, patching_gap_table, patching_table
from anchorscope.evidence.windows import windows_table
from anchorscope.pathways.effects import layers_table, pathways_table
from anchorscope.probes.probe_set import Readings
from anchorscope.records import Estimate
from anchorscope.stats.intervals import difference

N, LAYERS = 120, 3


@pytest.fixture(scope="module")
def readings() -> Readings:
    """Every third sample is Q to every probe; a patch moves Q as the knockout does, A hardly."""
    rng = np.random.default_rng(3)
    clean = rng.normal(0, 2, (3, N, LAYERS))
    q = (np.arange(N) % 3 == 0)[None, :, None]
    turned = np.where(q, -clean, clean)
    noise = rng.normal(0, 0.6, clean.shape)
    logits = {
        "clean": clean, "knockout": turned, "patch-matched": turned + noise,
        "patch-self": clean.copy(), "answer-only": 1.3 * turned + noise, "window-5": 0.5 * turned,
        "single": clean + noise,
    }  # fmt: skip
    logits["patch-matched"][:, 5] = np.nan  # a sample without a donor
    return Readings(ids=tuple(f"q{i}" for i in range(N)), z=np.arange(N) % 2,
                    fold=np.arange(N) % 5, probes=("paper", "a", "b"), logits=logits)  # fmt: skip


def test_patching_by_hand_and_wilson_by_scipy(readings: Readings):
    """Strict mode: grouped by probe a, flipped and predicted by probe b."""
    table = patching_table(inputs_for(readings))
    assert set(table["intervention"]) == {"patch-matched", "patch-self"} < set(PATCHES)
    assert len(table) == LAYERS * 2 * 2 * 5 * 3
    own = table[(table["intervention"] == "patch-self") & (table["n"] > 0)]
    assert (own["flip_rate"] == 0).all() and (own["flip_high"] > 0).all()
    a, b = (readings.logits["clean"][i, :, 1] for i in (1, 2))
    knocked, patched = (readings.logits[n][:, :, 1] for n in ("knockout", "patch-matched"))
    known = ~np.isnan(patched[2])  # sample 5, an A, has no donor
    q = (a > 0) != (knocked[1] > 0)
    flipped = (b > 0) != (patched[2] > 0)
    for subset, mask in {"predicted-wrong": b > 0, "right": readings.z == 0}.items():
        for pathway, group in (("Q", q), ("A", ~q)):
            mine = flipped[group & mask & known]
            found = row(table, layer=2, mode="strict", pathway=pathway, subset=subset,
                        intervention="patch-matched")  # fmt: skip
            ends = binomtest(int(mine.sum()), len(mine)).proportion_ci(method="wilson")
            assert found["n"] == len(mine)
            assert found["flip_rate"] == pytest.approx(mine.mean())
            assert [found["flip_low"], found["flip_high"]] == pytest.approx([ends.low, ends.high])


def noisy(readings: Readings) -> Readings:
    """A self-patch that rounding moves, and a control that flips most of what the patch flips."""
    rng = np.random.default_rng(9)
    clean, patched = readings.logits["clean"], readings.logits["patch-matched"]
    own = clean + rng.normal(0, 0.3, clean.shape)
    other = np.where(rng.random(clean.shape) < 0.9, patched, clean)
    return replace(
        readings, logits=dict(readings.logits) | {"patch-self": own, "patch-other": other}
    )


def test_every_patching_number_stands_beside_what_rounding_alone_flips(readings: Readings):
    rounded = noisy(readings)
    table = patching_table(inputs_for(rounded))
    layer = 1
    paper, knocked, own = (rounded.logits[n][0, :, layer] for n in
                           ("clean", "knockout", "patch-self"))  # fmt: skip
    q = (paper > 0) != (knocked > 0)
    floor = np.mean(((paper > 0) != (own > 0))[q])
    assert floor > 0
    for name in ("patch-matched", "patch-other", "patch-self"):
        found = row(table, layer=2, mode="paper", subset="all", pathway="Q", intervention=name)
        assert found["floor"] == pytest.approx(floor)
    without = {name: own for name, own in rounded.logits.items() if name != "patch-self"}
    assert patching_table(inputs_for(replace(rounded, logits=without)))["floor"].isna().all()


def test_a_patch_and_its_control_are_compared_as_pairs(readings: Readings):
    """The gap by hand; a control that flips nearly the same samples leaves a narrow interval."""
    rounded = noisy(readings)
    table, shares = patching_gap_table(inputs_for(rounded)), patching_table(inputs_for(rounded))
    layer = 1
    a, b = (rounded.logits["clean"][i, :, layer] for i in (1, 2))
    q = (a > 0) != (rounded.logits["knockout"][1, :, layer] > 0)
    known = ~np.isnan(rounded.logits["patch-matched"][2, :, layer])
    known &= ~np.isnan(rounded.logits["patch-other"][2, :, layer])
    flips = [((b > 0) != (rounded.logits[n][2, :, layer] > 0)).astype(float)
             for n in ("patch-matched", "patch-other")]  # fmt: skip
    beyond = flips[0] - flips[1]
    found = row(table, layer=2, mode="strict", subset="all", intervention="patch-matched",
                less="patch-other")  # fmt: skip
    assert found["gap"] == pytest.approx(beyond[q & known].mean() - beyond[~q & known].mean())

    def share(name: str, pathway: str) -> Estimate:
        found = row(
            shares, layer=2, mode="strict", subset="all", pathway=pathway, intervention=name
        )
        return Estimate(*(found[name] for name in ("flip_rate", "flip_low", "flip_high", "n")))

    gaps = [difference(share(n, "Q"), share(n, "A")) for n in ("patch-matched", "patch-other")]
    apart = difference(*gaps)
    assert found["gap_high"] - found["gap_low"] < 0.8 * (apart.high - apart.low)


def test_a_gap_without_any_spread_keeps_an_interval(readings: Readings):
    """All of Q flip and none of A: a bootstrap would be sure."""
    clean, knockout = readings.logits["clean"], readings.logits["knockout"]
    logits = {**readings.logits, "patch-matched": knockout, "patch-other": clean}
    table = patching_gap_table(inputs_for(replace(readings, logits=logits)))
    found = row(table, layer=2, mode="paper", subset="all", intervention="patch-matched",
                less="patch-other")  # fmt: skip
    assert found["gap"] == 1 and found["gap_low"] < 0.95


def test_an_empty_group_is_not_a_number(readings: Readings):
    still = replace(readings, logits={**readings.logits, "knockout": readings.logits["clean"]})
    q = patching_table(inputs_for(still)).query("pathway == 'Q'")
    assert (q["n"] == 0).all() and q[["flip_rate", "flip_low", "flip_high"]].isna().all(axis=None)
    alone = answer_only_table(inputs_for(still)).query("pathway == 'Q'")
    assert (alone["n"] == 0).all() and alone["delta_p"].isna().all()


def test_answer_only_by_pandas(readings: Readings):
    """The same numbers from the long table of samples, with the formula written out."""
    table = answer_only_table(inputs_for(readings))
    long = pathways_table(readings, dataset="d")
    long["other"] = np.concatenate(
        [readings.of(probe, "answer-only").ravel() for probe in ("paper", "b")]
    )
    sign = np.where(long["logit_clean"] > 0, 1, -1)
    long["points"] = 100 * (expit(sign * long["other"]) - expit(sign * long["logit_clean"]))
    long["logits"] = sign * (long["other"] - long["logit_clean"])
    means = long.groupby(["mode", "layer", "pathway", "prediction"])[["points", "logits"]].mean()
    for (mode, layer, pathway, predicted), expected in means.iterrows():
        subset = ("predicted-right", "predicted-wrong")[predicted]
        found = row(table, mode=mode, layer=layer, pathway=pathway, subset=subset)
        assert found["delta_p"] == pytest.approx(expected["points"])
        assert found["delta_logit"] == pytest.approx(expected["logits"])
        assert found["delta_p_low"] <= found["delta_p"] <= found["delta_p_high"]
    both = table.query("subset == 'all'").pivot(
        index=["mode", "layer"], columns="pathway", values="n"
    )
    assert (both["Q"] + both["A"] == both["all"]).all() and (both["all"] == N).all()


def test_windows_keep_the_groups_of_the_run(readings: Readings):
    table = windows_table(inputs_for(readings))
    assert list(dict.fromkeys(table["layers"])) == ["cumulative", "window:5", "single"]
    sizes = table.groupby(["mode", "layer", "pathway"])["n"].nunique()
    assert (sizes == 1).all()
    own = layers_table(pathways_table(readings, dataset="d"), model="m", resamples=100)
    keys = ["mode", "layer", "pathway"]
    both = table.query("layers == 'cumulative'").merge(own, on=keys, validate="one_to_one")
    assert len(both) == len(own)
    assert both["delta_p_x"].to_numpy() == pytest.approx(both["delta_p_y"].to_numpy())
    assert (both["n_x"] == both["n_y"]).all()
    named = windows_table(inputs_for(readings, layers="single"))
    assert set(named["layers"]) == {"single", "window:5"}
