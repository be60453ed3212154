"""Planted truths: what strict mode makes of them, where paper mode is fooled."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from anchorscope.config import Config
from anchorscope.errors import UserError
from anchorscope.probes.folds import labelled
from anchorscope.run_folder.table_columns import CLAIMS
from anchorscope.run_folder.view import RunView
from anchorscope.show.claims import claims_of
from anchorscope.simulate import Truth, simulate, simulate_states
from anchorscope.simulate.worlds import samples_of
from benchmarks.error_rates import Judged, judge_world
from benchmarks.on_real_states import RealStates, plant_law

QUICK = Config(model="x", data=("simulated",), resamples=100, fold_seeds=1)


def judged(world: str, seed: int = 0, **given) -> Judged:
    """The finding of a world, without the power that only planted worlds would tell."""
    truth = Truth(world=world, layers=2, seed=seed, **given)  # type: ignore[arg-type]
    return judge_world(truth, worlds=0)


NO_GROUPS = ("one-mechanism", "noise", "shift", "continuum", "skewed", "heavy-tails", "templates",
             "blocks")  # fmt: skip


@pytest.mark.parametrize("world", NO_GROUPS)
def test_worlds_without_groups_of_their_own_are_not_given_any(world):
    found = judged(world, samples=600 if world == "heavy-tails" else 400)
    assert found.finding.name == "cannot-tell"  # without a power nothing is excluded
    assert found.paper_holds  # paper mode sees two groups in every one of them


@pytest.mark.parametrize(
    ("finding", "by", "world", "given"),
    [
        ("explained", "belief", "margin", {}),
        ("explained", "kinds", "two-kinds", {}),
        ("explained", "kinds", "templates", {"templates": 2}),
        ("explained", "kinds", "interaction", {}),
        ("explained", "kinds", "popularity", {}),
        ("explained", "finder", "finder-misses", {}),
        *(
            ("two-pathways", "", "two-pathways", {"control": control})
            for control in ("jolt", "displaces", "surer", "breaks")
        ),
        ("two-pathways", "", "one-way", {}),
        ("two-pathways", "", "uneven-kinds", {}),
        # Two laws, not two humps of shifts.
        ("two-pathways", "", "to-the-prior", {"samples": 1500, "belief": 2.5}),
        ("too-few", "", "two-pathways", {"samples": 120}),
        ("no-effect", "", "no-effect", {}),
        # The groups are clear, and the retest puts samples into others: no power is needed.
        ("uniform", "", "coin-toss", {}),
    ],
)
def test_a_clear_world_is_named_for_what_it_is(finding, by, world, given):
    found = judged(world, **given).finding
    assert found.name == finding and (not by or found.by == by)


def test_a_weak_belief_is_read_weakly():
    strong, weak = (judged("to-the-prior", belief=belief) for belief in (1.5, 0.3))
    assert weak.finding.examined.reliability < strong.finding.examined.reliability
    assert weak.finding.name == "cannot-tell"


def test_the_size_of_the_gap_is_not_the_penaltys_or_the_training_sets():
    """Calibrated logits: the same world, whatever n, and whichever probe groups and measures."""
    few, many = (judged("two-pathways", samples=n, noise=0.8, seed=1) for n in (400, 1500))
    assert few.paper_gap.low - 2 <= many.paper_gap.value <= few.paper_gap.high + 2
    for found in (few, many):
        assert found.finding.same_gap == pytest.approx(found.paper_gap.value, abs=4)


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


def test_the_finder_misses_as_many_as_planted_and_a_coin_is_tossed_again():
    truth = Truth(world="finder-misses", samples=4000, layers=1, width=2, missed=0.2, noise=0.1)
    made, tossed = simulate_states(truth), simulate_states(replace(truth, world="coin-toss"))

    def far(states: dict[str, np.ndarray], cut: str, before: str = "clean") -> np.ndarray:
        return np.linalg.norm(states[cut] - states[before], axis=2)[:, 0] > 1

    assert made.samples.missed.mean() == pytest.approx(0.2, abs=0.02)
    assert np.array_equal(far(made.states, "knockout"), ~made.samples.missed)
    assert far(made.states, "question").all()  # the whole question holds what was missed
    first, again = far(tossed.states, "knockout"), far(tossed.states, "retest-knockout", "retest")
    assert first.mean() == pytest.approx(0.5, abs=0.03)
    assert (first == again).mean() == pytest.approx(0.5, abs=0.03)


def test_what_a_sample_is_reaches_the_analysis_as_a_real_runs_does():
    truth = Truth(world="two-kinds", samples=200, layers=1, width=2)
    made = simulate_states(truth)
    covariates = labelled(samples_of(truth, made), "simulated", QUICK).covariates
    drawn = made.samples
    assert np.array_equal(covariates.prompt_length, drawn.length)
    assert np.array_equal(covariates.exact_tokens, drawn.exact_tokens)
    assert covariates.log_popularity == pytest.approx(drawn.log_popularity / np.log(10))
    assert np.array_equal(covariates.relation, drawn.relation)
    assert np.array_equal(covariates.kind, drawn.kind) and set(drawn.kind) == {"yes/no", "name"}


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
        ({"missed": 0.0}, "missed is 0.0. Accepted: between 0 and 1."),
        ({"control": "none"}, "Unknown control 'none'"),
    ],
)
def test_mistakes_are_named(given, said):
    with pytest.raises(UserError, match=said):
        Truth(**given)


def made_real(n: int = 300, width: int = 4) -> RealStates:
    """States like those of a finished run, with a displacement that tells every sample apart."""
    truth = Truth(samples=n, layers=2, width=width, seed=5)
    made = simulate_states(truth)
    samples = samples_of(truth, made)
    return RealStates(
        states={name: values.astype(np.float64) for name, values in made.states.items()},
        samples=samples,
        z=made.z,
        covariates=labelled(samples, "simulated", QUICK).covariates,
    )


def along(real: RealStates, states: np.ndarray) -> np.ndarray:
    """The states' belief: where they are between the class means of layer 2, [question]."""
    clean = real.states["clean"][:, 1]
    means = [clean[real.z == which].mean(axis=0) for which in (0, 1)]
    axis = (means[1] - means[0]) / np.linalg.norm(means[1] - means[0])
    return (states[:, 1] - (means[0] + means[1]) / 2) @ axis


def test_a_planted_share_loses_its_belief_in_every_cut_and_a_coin_in_none_twice():
    real = made_real(n=1000)
    belief = along(real, real.states["clean"])
    strong = np.abs(belief) > 1.5

    def lost(law: str, name: str, before: str) -> np.ndarray:
        planted = plant_law(real, law, seed=2)  # type: ignore[arg-type]
        moved = along(real, planted[name]) - along(real, planted[before])
        return ((-moved / belief) > 0.5)[strong]

    for law, least, most in (("two-pathways", 0.85, 1.0), ("coin-toss", 0.3, 0.7)):
        first = lost(law, "knockout", "clean")
        again = lost(law, "retest-knockout", "retest")
        assert 0.35 < first.mean() < 0.65
        assert least < (first == again).mean() < most
    assert lost("finder-misses", "question", "clean").mean() > 0.85
    assert lost("finder-misses", "knockout", "clean").mean() == pytest.approx(0.7, abs=0.12)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "two"
    simulate(Truth(samples=200, layers=3, width=16, noise=0.5), out=out, config=QUICK)
    return out


def test_a_simulated_run_is_a_whole_run(done):
    assert json.loads((done / "run.json").read_text())["finished"] is True
    tables = {"layers", "probes", "controls", "spans", "strict", "findings", "claims", "truth"}
    tables |= {"answer_only", "awareness", "awareness_gap", "boundary", "boundary_model"}
    tables |= {"control_layers"}
    assert {p.stem for p in (done / "tables").glob("*.csv")} == tables
    view = RunView.open(done)
    assert view.findings["untested"].tolist() == [""]  # every pass that the finding asks for
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
    assert list(again["strict_decision"]) == list(table["strict_decision"])
    assert again["paper_value"].to_numpy() == pytest.approx(table["paper_value"], nan_ok=True)
    allowed = {"holds", "fails", "undecided", "not shown", "not measured"}
    assert set(table["paper_decision"]) | set(table["strict_decision"]) <= allowed


def test_the_same_truth_again_takes_no_work(done):
    before = (done / "report.html").stat().st_mtime_ns
    simulate(Truth(samples=200, layers=3, width=16, noise=0.5), out=done, config=QUICK)
    assert (done / "report.html").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="holds another run"):
        simulate(Truth(samples=200, layers=3, width=16, noise=0.7), out=done, config=QUICK)
