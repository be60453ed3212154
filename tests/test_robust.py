"""robust.csv: each row is what a run made otherwise says, by other code."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from kit.cross_fitted import cross_fit
from kit.evidence_fixture import simulated
from safetensors import safe_open

from anchorscope.config import Config
from anchorscope.pathways.band import READ, best_layer
from anchorscope.pipeline.variants import table_of
from anchorscope.probes.folds import entity_folds, labelled
from anchorscope.probes.probe_set import Readings
from anchorscope.run_folder.table_columns import ROBUST
from anchorscope.run_folder.view import RunView
from anchorscope.simulate import Truth
from benchmarks.error_rates import judge_states

QUICK = Config(model="x", data=("simulated",), resamples=100, fold_seeds=1)
TWO = Truth(samples=320, layers=2, width=16)
VARIANTS = ["as run", "C=0.75", "C=12", "folds=3", "folds=10", "fold-seed=1"]
VARIANTS += ["flipped=2%", "flipped=5%", "flipped=10%", "half"]
GAPS = ["paper_gap", "same_gap", "strict_gap", "gap_low", "gap_high"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """A run of two pathways, tested under other choices."""
    return simulated(tmp_path_factory.mktemp("runs") / "two", TWO, robust=True)


def row(view: RunView, variant: str) -> pd.Series:
    (index,) = view.robust.index[view.robust["variant"] == variant]
    return view.robust.loc[index]


def test_one_row_for_each_choice(two):
    assert tuple(two.robust.columns) == ROBUST
    assert list(two.robust["variant"]) == VARIANTS
    assert list(two.robust["n"]) == [320] * 9 + [160]
    assert (two.robust["agrees"] == (two.robust["finding"] == two.findings["finding"][0])).all()


def test_the_first_row_is_the_run(two):
    own, finding, strict = row(two, "as run"), two.findings.loc[0], two.strict
    (at,) = strict.index[strict["layer"] == finding["layer"]]
    assert (own["layer"], own["n"], own["finding"]) == tuple(finding[["layer", "n", "finding"]])
    told = [strict.loc[at, "paper_gap"], *finding[["same_gap", "gap", "gap_low", "gap_high"]]]
    assert list(own[GAPS]) == pytest.approx(told, abs=1e-9)


@pytest.mark.parametrize(
    ("variant", "otherwise"),
    [("C=0.75", {"C": 0.75}), ("fold-seed=1", {"seed": 1})],
)
def test_a_row_is_what_a_run_with_that_option_says(two, tmp_path, variant, otherwise):
    run = simulated(tmp_path / "run", TWO, **otherwise, evidence=())
    finding = run.findings.loc[0]
    said = row(two, variant)
    assert (said["layer"], said["finding"]) == (finding["layer"], finding["finding"])
    told = list(finding[["same_gap", "gap", "gap_low", "gap_high"]])
    assert list(said[GAPS[1:]]) == pytest.approx(told, abs=1e-9)


def states_of(view: RunView, ids: tuple[str, ...]) -> dict[str, np.ndarray]:
    states = {}
    for name in READ:
        with safe_open(view.path / "states" / name / "00000.safetensors", "numpy") as file:
            stored = json.loads(file.metadata()["ids"])
            states[name] = file.get_tensor("states")[[stored.index(id) for id in ids]]
    return states


def test_half_of_the_data_is_read_like_a_run_of_its_own(two):
    """All layers at once and in memory, from a list of entities drawn here."""
    entities = sorted(set(two.samples["entity"]))
    drawn = np.random.default_rng(0).permutation(len(entities))[: len(entities) // 2]
    kept = {entities[n] for n in drawn}
    samples = [s for s in two.answers if s.question.entity in kept]
    answers = labelled(samples, "simulated", QUICK)
    readings, _ = cross_fit(
        states_of(two, answers.ids),
        ids=answers.ids,
        z=answers.z,
        fold=entity_folds(answers.entities, folds=5, seed=0),
        entity=answers.entities,
        C=3.0,
    )
    layer = best_layer(readings)
    finding = judge_states(states_of(two, answers.ids), samples, config=QUICK).finding
    said = row(two, "half")
    assert (said["layer"], said["n"], said["finding"]) == (layer, len(answers.ids), finding.name)
    told = [_paper_gap(readings, layer), finding.same_gap, *finding.gap[:3]]
    assert list(said[GAPS]) == pytest.approx(told, abs=1e-9)


def _paper_gap(readings: Readings, layer: int) -> float:
    """ΔP of the flipped less that of the others, by hand."""
    clean, cut = (readings.at(layer, "paper", name) for name in ("clean", "knockout"))
    sign = np.where(clean > 0, 1.0, -1.0)
    effect = 100 * (1 / (1 + np.exp(-sign * cut)) - 1 / (1 + np.exp(-sign * clean)))
    flipped = (clean > 0) != (cut > 0)
    return float(effect[flipped].mean() - effect[~flipped].mean())


def test_the_command_adds_the_table_and_changes_no_other(cli, tmp_path, no_pictures):
    """A world too small for a finding, so that it is quick."""
    out = tmp_path / "run"
    words = ["--world", "no-effect", "--samples", 60, "--layers", 1, "--width", 4, "--out", out]
    assert cli("simulate", *words)[0] == 0
    before = {file: file.read_bytes() for file in (out / "tables").iterdir()}
    code, printed, _ = cli("simulate", *words, "--robust")
    table = pd.read_csv(out / "tables" / "robust.csv")
    assert code == 0
    assert list(table["variant"]) == [v.replace("=1", "=3") if "seed" in v else v for v in VARIANTS]
    assert set(table["finding"]) == {"too-few"} and table["agrees"].all()
    assert all(variant in printed for variant in table["variant"])
    assert {file: file.read_bytes() for file in before} == before


def test_draws_of_a_choice_are_one_row_and_the_finding_is_that_of_most():
    start = {"dataset": "d", "layer": 4, "n": 200}
    gaps = dict.fromkeys(GAPS, -3.0)
    rows = [{"variant": "as run", **start, **gaps, "finding": "graded"}]
    for layer, gap, finding in ((3, -1.0, "graded"), (9, -7.0, "explained"), (5, -2.0, "graded")):
        drawn = start | dict.fromkeys(GAPS, gap) | {"layer": layer, "finding": finding}
        rows.append({"variant": "flipped=2%", **drawn})
    rows.append({"variant": "half", "dataset": "d", "n": 30, "finding": "too-few"})
    table = table_of(rows)
    assert list(table["variant"]) == ["as run", "flipped=2%", "half"]
    assert list(table["layer"].fillna(0)) == [4, 5, 0]
    assert list(table["strict_gap"].fillna(0)) == [-3.0, -2.0, 0]
    assert list(table["agrees"]) == [True, True, False]
