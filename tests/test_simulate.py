"""Planted truths: what strict mode makes of them, where paper mode is fooled."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from anchorscope.config import Config
from anchorscope.errors import UserError
from anchorscope.run_folder.table_columns import CLAIMS
from anchorscope.run_folder.view import RunView
from anchorscope.show.report.claims_table import claims_of
from anchorscope.simulate import Truth, simulate, simulate_states
from anchorscope.simulate.error_rates import judge_world

SEEDS = range(3)
QUICK = Config(model="x", data=("simulated",), resamples=200, fold_seeds=2)


def findings(world: str, **given) -> tuple[list[str], list[bool]]:
    found = [judge_world(Truth(world=world, layers=1, seed=s, **given)) for s in SEEDS]  # type: ignore[arg-type]
    return [j.finding for j in found], [j.paper_holds for j in found]


@pytest.mark.parametrize(
    ("world", "given", "allowed"),
    [
        ("one-mechanism", {}, {"one-mechanism"}),
        ("shift", {"strength": 4.0}, {"class-collapse"}),
        ("shift", {"strength": 1.0}, {"shift"}),
        ("continuum", {}, {"continuum", "undecided"}),
        ("skewed", {}, {"continuum", "undecided"}),
        ("heavy-tails", {"samples": 600}, {"one-mechanism", "continuum", "undecided"}),
        ("templates", {"templates": 2}, {"kinds-of-question"}),
        ("two-kinds", {}, {"kinds-of-question"}),
        ("margin", {}, {"margin"}),
        ("blocks", {}, {"continuum", "undecided"}),
    ],
)
def test_worlds_without_a_second_pathway_are_not_given_one(world, given, allowed):
    found, fooled = findings(world, **given)
    assert set(found) <= allowed
    assert all(fooled)  # paper mode sees two groups in every one of them


@pytest.mark.parametrize(
    ("world", "given"),
    [
        ("two-pathways", {"noise": 0.6}),
        ("one-way", {"noise": 0.6}),
        ("to-the-prior", {"samples": 1200}),  # two laws, not two humps of shifts
    ],
)
def test_a_clear_mixture_is_found(world, given):
    found, paper = findings(world, **given)
    assert found == ["two-pathways"] * len(SEEDS)
    assert all(paper)


def test_few_samples_make_no_finding():
    assert set(findings("two-pathways", samples=120)[0]) == {"too-few"}


def test_the_size_of_the_gap_is_not_the_penaltys_or_the_training_sets():
    """Calibrated logits: the same world, whatever n, and whichever probe groups and measures."""
    few, many = (judge_world(Truth(samples=n, layers=1, noise=0.8, seed=1)) for n in (400, 1500))
    assert few.paper_gap.low - 2 <= many.paper_gap.value <= few.paper_gap.high + 2
    for judged in (few, many):
        assert judged.same_gap == pytest.approx(judged.paper_gap.value, abs=4)


def test_no_effect_is_no_pathway():
    found, _ = findings("no-effect")
    assert "two-pathways" not in found and "no-effect" in found


def test_the_states_hold_what_was_planted():
    truth = Truth(samples=4000, layers=2, width=8, strength=3.0, noise=0.5, mixture=0.3, seed=1)
    made = simulate_states(truth)
    assert made.samples.dose.mean() == pytest.approx(0.3) and set(made.samples.dose) == {0.0, 1.0}
    moved = np.linalg.norm(made.states["knockout"] - made.states["clean"], axis=2)[:, 1]
    pushed = made.samples.dose == 1
    # Eight directions of noise 0.5, and along one of them a push of 3.
    assert (moved[~pushed] ** 2).mean() == pytest.approx(8 * 0.25, rel=0.05)
    assert (moved[pushed] ** 2).mean() == pytest.approx(8 * 0.25 + 9, rel=0.05)
    again = simulate_states(truth)
    assert all(np.array_equal(again.states[name], made.states[name]) for name in made.states)


def test_continuum_has_the_mean_and_spread_of_two_pathways():
    one, two = (
        simulate_states(Truth(world=world, samples=20000, layers=1, width=2)).samples.dose  # type: ignore[arg-type]
        for world in ("continuum", "two-pathways")
    )
    assert (one.mean(), one.std()) == pytest.approx((two.mean(), two.std()), abs=0.01)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"world": "three"}, "Unknown world 'three'"),
        ({"samples": 5}, "samples is 5. Accepted: 60 or more."),
        ({"mixture": 1.0}, "mixture is 1.0. Accepted: between 0 and 1."),
        ({"noise": 0.0}, "noise above 0"),
    ],
)
def test_mistakes_are_named(given, said):
    with pytest.raises(UserError, match=said):
        Truth(**given)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "two"
    simulate(Truth(samples=200, layers=3, width=16, noise=0.5), out=out, config=QUICK)
    return out


def test_a_simulated_run_is_a_whole_run(done):
    assert json.loads((done / "run.json").read_text())["finished"] is True
    tables = {"layers", "probes", "controls", "spans", "strict", "verdict", "claims", "truth"}
    tables |= {"answer_only", "awareness", "awareness_gap", "boundary", "boundary_model"}
    assert {p.stem for p in (done / "tables").glob("*.csv")} == tables
    view = RunView.open(done)
    strict = view.strict
    assert list(strict["layer"]) == [1, 2, 3]
    layers = view.layers.pivot_table(index=["mode", "layer"], columns="pathway", values="delta_p")
    for mode in ("paper", "strict"):  # the gap of strict.csv is that of layers.csv
        gap = (layers["Q"] - layers["A"])[mode].to_numpy()
        assert strict[f"{mode}_gap"].to_numpy() == pytest.approx(gap, abs=1e-9)
    report = (done / "report.html").read_text()
    assert "Which claims hold" in report and "Two pathways, or something else?" in report


def test_claims_of_the_folder_are_the_claims_of_the_run(done):
    table = pd.read_csv(done / "tables" / "claims.csv")
    assert tuple(table.columns) == CLAIMS
    assert table.loc[0, "claim"] == "two-pathways"
    again = claims_of([RunView.open(done)])
    assert list(again["strict_verdict"]) == list(table["strict_verdict"])
    assert again["paper_value"].to_numpy() == pytest.approx(table["paper_value"], nan_ok=True)
    allowed = {"holds", "fails", "undecided", "not shown", "not measured"}
    assert set(table["paper_verdict"]) | set(table["strict_verdict"]) <= allowed


def test_the_same_truth_again_takes_no_work(done):
    before = (done / "report.html").stat().st_mtime_ns
    simulate(Truth(samples=200, layers=3, width=16, noise=0.5), out=done, config=QUICK)
    assert (done / "report.html").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="holds another run"):
        simulate(Truth(samples=200, layers=3, width=16, noise=0.7), out=done, config=QUICK)
