"""Claims: regions, Holm, curves with known answers, and the readings of the figure."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from anchorscope.claims.about_curves import reference_bands
from anchorscope.claims.decision import (
    ClaimInputs,
    Measured,
    Region,
    both,
    from_draws,
    from_estimate,
)
from anchorscope.claims.table import claims_table
from anchorscope.pathways.effects import delta_p
from anchorscope.records import Estimate
from anchorscope.stats.drawing import drawn_sums
from anchorscope.stats.intervals import holm


def test_holm_steps_down_and_does_not_count_what_was_not_measured():
    """The k-th smallest of m is multiplied by m − k, and never falls below the last."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.001]) == pytest.approx([0.9, 0.002])
    assert holm([0.02, math.nan, 0.04]) == pytest.approx([0.04, math.nan, 0.04], nan_ok=True)


@pytest.mark.parametrize(
    ("value", "decision"),
    [(-30, "holds"), (-10, "fails"), (-20.5, "undecided"), (-19.5, "undecided")],
)
def test_an_interval_that_allows_both_decides_nothing(value, decision):
    drawn = value + np.random.default_rng(0).normal(0, 2, 2000)
    reading = from_draws(value, drawn, Region(high=-20))
    assert reading.decision(reading.p) == decision
    inside = reading.high < -20
    assert (decision == "holds") == inside


def test_a_region_with_two_ends():
    for value, decision in ((0, "holds"), (15, "fails"), (-15, "fails"), (9.5, "undecided")):
        reading = from_estimate(Estimate(value, value - 2, value + 2, 50), Region(low=-10, high=10))
        assert reading.decision(reading.p) == decision


def test_a_second_reading_that_fails_does_not_make_an_undecided_number_fail():
    shown = from_estimate(Estimate(-0.15, -0.42, 0.12, 60), Region(low=0.0))
    second = from_estimate(Estimate(-0.05, -0.06, -0.04, 60), Region(low=0.0))
    found = both(shown, second)
    assert second.decision(second.p) == "fails" and found.decision(found.p) == "undecided"
    assert (found.low, found.high) == (-0.42, 0.12)
    clear = from_estimate(Estimate(-0.3, -0.42, -0.18, 60), Region(low=0.0))
    low = both(clear, from_estimate(Estimate(0.1, 0.05, 0.15, 60), Region(low=0.0)))
    assert low.decision(low.p) == "fails"


def test_the_accuracy_of_the_groups_draws_entities():
    """Ten questions to an entity, all answered alike, say no more than one."""
    alone = run("m", {"d": FALL})
    rows = alone.pathways
    number = rows["id"].str.split(":").str[1].astype(int)
    # Both groups and both classes in every entity's ten questions would not do: alike they are.
    about = {f"d:{i}": f"thing {i // 10}" for i in range(120)}
    rows = rows.assign(z=((number // 10) % 2).astype(int),
                       pathway=np.where((number // 10) % 4 < 2, "Q", "A"))  # fmt: skip
    widths = []
    for entity in ({}, about):
        table = claims_table([replace(alone, pathways=rows, entity=entity)])
        (row,) = table[table["claim"] == "q-knows"].to_dict("records")
        widths.append(row["paper_high"] - row["paper_low"])
    assert widths[1] > 2 * widths[0]


def test_no_number_is_not_measured():
    assert from_draws(math.nan, np.zeros(10), Region()).decision(0.0) == "not measured"
    assert Measured().decision(math.nan) == "not measured"


def run(
    model: str,
    depth: dict[str, np.ndarray],
    *,
    size: float = 1.0,
    finding: str = "two-pathways",
    power: float = math.nan,
) -> ClaimInputs:
    """A run whose Q samples fall to `depth` [layer] points and whose A samples stay."""
    rng = np.random.default_rng(0)
    frames, findings, strict = [], [], []
    for dataset, curve in depth.items():
        for mode in ("paper", "strict"):
            for layer, points in enumerate(curve, start=1):
                q = np.arange(120) % 2 == 0
                # A clean logit of 3 towards "right"; the knocked-out one gives the points asked.
                p = 1 / (1 + np.exp(-3)) + np.where(q, points, 0) / 100
                p = np.clip(p + 0.005 * rng.standard_normal(120), 0.001, 0.999)
                frames.append(
                    pd.DataFrame(
                        {
                            "id": [f"{dataset}:{i}" for i in range(120)], "dataset": dataset,
                            "layer": layer, "mode": mode, "z": np.arange(120) % 3 == 0,
                            "prediction": 0, "logit_clean": -3.0,
                            "logit_knockout": -np.log(p / (1 - p)),
                            "pathway": np.where(q, "Q", "A"),
                        }
                    )
                )  # fmt: skip
        ends = {f"{n}{e}": math.nan for n in ("adds_gain", "answer_only_paper",
                "answer_only_strict") for e in ("", "_low", "_high")}  # fmt: skip
        strict.append({"dataset": dataset, "layer": len(curve), **ends})
        findings.append({"dataset": dataset, "layer": len(curve), "finding": finding, "gap": -1.0,
                         "gap_low": -2.0, "gap_high": 0.0, "dip_p": 0.4, "power_half": power,
                         "power_fifth": power})  # fmt: skip
    return ClaimInputs(
        model=model, size=size, titles={name: name for name in depth},
        pathways=pd.concat(frames).astype({"z": int}), strict=pd.DataFrame(strict),
        findings=pd.DataFrame(findings), popularity={}, resamples=200,
    )  # fmt: skip


U = np.array([0, -10, -20, -40, -60, -60, -40, -30, -20, -20], dtype=float)
FALL = np.linspace(0, -80, 10)


def decisions(table: pd.DataFrame, mode: str = "strict") -> dict[tuple[str, str], str]:
    return {(r["claim"], r["dataset"]): r[f"{mode}_decision"] for r in table.to_dict("records")}


def test_the_curves_are_those_of_pandas_pivot_whatever_the_order_of_the_rows():
    """With rows that are missing, samples in no group, and layers and ids that sort as text."""
    whole = run("m", {"d": FALL, "e": U})
    rows = whole.pathways.sample(frac=0.97, random_state=0)
    nowhere = np.random.default_rng(1).random(len(rows)) < 0.1
    rows = rows.assign(pathway=rows["pathway"].where(~nowhere))
    about = {f"d:{i}": f"thing {i // 3}" for i in range(120)}
    for (name, mode), curves in replace(whole, pathways=rows, entity=about).curves.items():
        mine = rows[(rows["dataset"] == name) & (rows["mode"] == mode)]
        table = mine.pivot(index="id", columns="layer")
        clean, knockout = (table[f"logit_{name}"].to_numpy(float) for name in ("clean", "knockout"))
        effect = np.nan_to_num(delta_p(clean, knockout))
        member = [table["pathway"].to_numpy() == which for which in ("Q", "A")]
        columns = np.hstack([*member, *(effect * part for part in member)])
        entity = np.array([about.get(id, id) for id in table.index])
        drawn = drawn_sums(columns, seed=0, resamples=200, entity=entity)
        for sums, q, a in (
            (columns.sum(axis=0)[None], curves.q[None], curves.a[None]),
            (drawn, curves.drawn_q, curves.drawn_a),
        ):
            counts, totals = np.split(sums, 2, axis=1)
            np.testing.assert_array_equal(np.hstack([q, a]), totals / counts)


def test_shapes_are_told_apart():
    table = claims_table([run("m", {"u": U, "fall": FALL})])
    found, p = decisions(table), table.set_index(["claim", "dataset"])["strict_p"]
    assert p["u-shape", "u"] == p["keeps-falling", "u"]  # one number, which counts once
    assert (found["u-shape", "u"], found["keeps-falling", "u"]) == ("holds", "fails")
    assert (found["u-shape", "fall"], found["keeps-falling", "fall"]) == ("fails", "holds")
    assert found["deepest-in-middle", "u"] == "holds"
    assert found["deepest-in-middle", "fall"] == "fails"
    assert found["a-near-zero", "u"] == found["q-far-below", "u"] == "holds"
    assert found["start-near-zero", "fall"] == "holds"
    assert found["q-converge", "u,fall"] == "fails"
    assert found["two-pathways", "u"] == "holds"


@pytest.mark.parametrize("finding", ["explained", "graded", "cannot-tell", "too-few"])
def test_without_two_pathways_nothing_is_said_of_q_and_a(finding):
    """One dataset without them is enough for a claim that compares two."""
    table = claims_table([run("m", {"u": U, "fall": FALL}, finding=finding)])
    assert set(table["strict_decision"]) == {"not shown", "not measured"}
    assert {"holds", "fails"} <= set(table["paper_decision"])
    small, large = run("s", {"u": U}), run("l", {"u": 2 * U}, size=2.0, finding=finding)
    found = decisions(claims_table([small, large]))
    assert found["larger-deeper", "u"] == "not shown"


@pytest.mark.parametrize(
    ("finding", "power", "decision"),
    [
        ("uniform", 0.9, "fails"),
        ("uniform", 0.5, "not shown"),  # two groups would have been missed as well
        ("graded", 0.9, "not shown"),  # samples differ, and two groups are not excluded
        ("cannot-tell", 0.9, "not shown"),
        ("two-pathways", 0.5, "holds"),
    ],
)
def test_two_pathways_fail_only_where_the_alternative_is_excluded(finding, power, decision):
    """A gap near zero excludes nothing: weak probes give one where there are pathways."""
    table = claims_table([run("m", {"u": 0.02 * U}, finding=finding, power=power)])
    assert decisions(table)["two-pathways", "u"] == decision


def test_claims_between_datasets_and_models_need_two():
    one = claims_table([run("m", {"u": U})])
    assert not {"datasets-follow", "deepest-dataset", "larger-deeper"} & set(one["claim"])
    small, large = run("small", {"u": U}), run("large", {"u": 1.3 * U}, size=9.0)
    both = claims_table([large, small])
    assert decisions(both)["larger-deeper", "u"] == "holds"
    turned = claims_table([run("small", {"u": 1.3 * U}), run("large", {"u": U}, size=9.0)])
    assert decisions(turned)["larger-deeper", "u"] == "fails"
    alike = decisions(claims_table([run("m", {"one": U, "two": 0.7 * U})]))
    assert alike["datasets-follow", "one,two"] == alike["deepest-dataset", "one,two"] == "holds"


def test_two_pathways_comes_first_and_paper_mode_believes_it():
    table = claims_table([run("m", {"u": U}, finding="uniform")])
    first = table.iloc[0]
    assert first["claim"] == "two-pathways" and first["finding"] == "uniform"
    assert (first["paper_decision"], first["strict_decision"]) == ("holds", "not shown")
    assert first["paper_value"] == pytest.approx(-20, abs=0.5)


def test_bands_of_the_four_models():
    bands = reference_bands("meta-llama/Llama-3.2-1B")
    assert set(bands["reading"]) == {"a", "b", "c"}
    row = bands[(bands["reading"] == "a") & (bands["part"] == "trough")].iloc[0]
    assert (row["dataset"], row["layer_low"], row["low"]) == ("PopQA", 10, -55)
    assert set(reference_bands("Qwen3-32B")["reading"]) == {"d", "e"}
    assert reference_bands("gpt2").empty
    known = reference_bands("Llama-3.2-3B")
    assert (known["low"] <= known["high"]).all()


def test_contradicting_readings_get_verdicts_of_their_own():
    """A U with A flat: what reading a says, and not what reading c says."""
    deep = {
        name: np.interp(np.arange(1, 17), [1, 10, 16], [-15, -55, -40]) for name in ("PopQA", "NQ")
    }
    table = claims_table([run("Llama-3.2-1B", deep)])
    found = decisions(table)
    assert found["figure-a-Q-trough", "PopQA"] == "holds"
    assert found["figure-a-A-all-layers", "NQ"] == "holds"
    assert found["figure-a-Q-last", "NQ"] == "holds"
    assert found["figure-a-Q-shape", "PopQA"] == "holds"
    assert found["figure-c-A-layers-5-to-15", "NQ"] == "fails"
    assert found["figure-c-Q-shape", "PopQA"] == "fails"
