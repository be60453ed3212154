"""The report's sentences carry the tables' numbers, and say when there is nothing to say."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from kit.show_fixture import make_run

from anchorscope.records import Estimate
from anchorscope.run_folder.view import RunView
from anchorscope.show.report.headline import headline, widest_layer
from anchorscope.show.report.words import cautions, listed, moves, number, percent, sentences
from anchorscope.stats.intervals import difference


def at(run: RunView, layer: int | None, mode: str, pathway: str):
    (row,) = run.layers.query(
        "dataset == 'atlas' and layer == @layer and mode == @mode and pathway == @pathway"
    ).to_dict("records")
    return row


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return RunView.open(make_run(tmp_path_factory.mktemp("run") / "run", layers=8, n=200))


def test_the_layer_is_the_one_of_the_widest_paper_gap(run: RunView) -> None:
    table = run.layers.query("dataset == 'atlas'")
    wide = table.query("mode == 'paper'").pivot(index="layer", columns="pathway", values="delta_p")
    assert widest_layer(table) == (wide["Q"] - wide["A"]).idxmin()


def test_layers_with_few_samples_do_not_win(run: RunView) -> None:
    table = run.layers.query("dataset == 'atlas'").copy()
    best = widest_layer(table)
    few = (table["layer"] == best) & (table["pathway"] == "Q")
    table.loc[few, "n"] = 2
    assert widest_layer(table) != best
    table["n"] = 2
    assert widest_layer(table) == best  # where all are few, few is what there is


def test_sentences_carry_the_tables_numbers(run: RunView) -> None:
    head = headline(run, "atlas", "Atlas")
    paper, neutral = sentences(head)
    q, a = at(run, head.layer, "paper", "Q"), at(run, head.layer, "paper", "A")
    share = 100 * q["n"] / (q["n"] + a["n"])
    assert f"At layer {head.layer}," in paper
    assert f"on {share:.0f} % of {q['n'] + a['n']} Atlas samples" in paper
    assert (
        f"lowers the probability of the probe’s first prediction by {-q['delta_p']:.1f} points"
        in paper
    )
    assert f"by {abs(a['delta_p']):.1f} points." in paper
    (control,) = run.controls.query(
        "dataset == 'atlas' and layer == @head.layer and intervention == 'neutral'"
    ).to_dict("records")
    assert f"flips {100 * control['flip_rate']:.0f} %" in neutral
    assert f"by {abs(control['delta_p']):.1f} points" in neutral
    assert cautions(head) == []


def test_chance_probes_and_few_samples_are_said(tmp_path: Path) -> None:
    run = RunView.open(make_run(tmp_path / "run", layers=4, n=16, auroc=0.51))
    text = " ".join(cautions(headline(run, "atlas", "Atlas")))
    assert "not shown to be better than chance (AUROC 0.51" in text
    assert "Few samples" in text


def test_an_empty_group_gives_one_plain_sentence(tmp_path: Path) -> None:
    run = RunView.open(make_run(tmp_path / "run", layers=3, n=30, empty=("atlas",)))
    head = headline(run, "atlas", "Atlas")
    n = at(run, 1, "paper", "A")["n"]
    assert head.layer is None
    (said,) = sentences(head)
    assert f"on none of the {n} Atlas samples" in said
    assert "no gap to report" in said


def test_class_collapse_is_said(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", layers=4, n=120)
    run = RunView.open(folder)
    run.pathways["pathway"] = np.where(run.pathways["prediction"] == 0, "Q", "A")
    (said,) = cautions(headline(run, "atlas", "Atlas"))
    assert "100 % of those predicted right flip, and 0 % of those predicted wrong" in said


def test_a_difference_agrees_with_a_bootstrap() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.gamma(2, 10, 80) - 60, rng.normal(0, 5, 120)

    def draws(x: np.ndarray) -> np.ndarray:
        return x[rng.integers(0, len(x), (4000, len(x)))].mean(axis=1)

    def estimate(x: np.ndarray) -> Estimate:
        low, high = np.quantile(draws(x), [0.025, 0.975])
        return Estimate(float(x.mean()), float(low), float(high), len(x))

    gap = difference(estimate(one), estimate(other))
    low, high = np.quantile(draws(one) - draws(other), [0.025, 0.975])
    assert gap.value == pytest.approx(one.mean() - other.mean())
    assert gap.low == pytest.approx(low, abs=0.15)
    assert gap.high == pytest.approx(high, abs=0.15)
    assert gap.n == 80


def test_numbers_are_written_honestly() -> None:
    assert number(-0.04) == "0.0"
    assert number(-12.34) == "−12.3"
    assert number(math.nan) == "not measured"
    assert percent(0.001) == "0.1 %"
    assert percent(-0.058) == "−5.8 %"
    assert percent(0.0) == "0 %"
    assert percent(0.999) == "99.9 %"
    assert moves(-0.01) == "leaves it where it was (0.0 points)"
    assert moves(2.0, unit="percent") == "raises it by 2.0 percent"
    assert [listed([]), listed(["a"]), listed(["a", "b"])] == ["", "a", "a and b"]
    assert listed(["a", "b", "c"]) == "a, b and c"
