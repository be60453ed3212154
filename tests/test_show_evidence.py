"""The other evidence in a run folder: read, drawn, written and judged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kit.evidence_fixture import (
    covariates_of,
    inputs_of,
    readings_of,
    used_samples,
)
from kit.show_fixture import add_claims, make_run
from scipy.integrate import trapezoid

from anchorscope.claims.table import claims_table
from anchorscope.evidence.pieces import evidence_tables
from anchorscope.run_folder.view import RunView, where
from anchorscope.show.charts import chart_data
from anchorscope.show.claims import claim_inputs, claims_of
from anchorscope.show.evidence import PIECES, chosen_layer, pieces_of, summed_logs
from anchorscope.show.figures import figure_names, figure_of
from anchorscope.show.report import page


@pytest.fixture
def run(evidence_run: RunView) -> RunView:
    return evidence_run


def test_only_what_was_asked_for_and_read_is_made(run: RunView) -> None:
    readings, _ = readings_of(run.path)
    read = {name: readings.logits[name] for name in ("clean", "knockout")}
    inputs = inputs_of(run.path, replace(readings, logits=read))
    assert evidence_tables((), inputs) == {}
    asked = ("patching", "answer-only", "saliency", "heads", "boundary")
    assert set(evidence_tables(asked, inputs)) == {"boundary", "boundary_model"}


def decisions(run: RunView, findings: pd.DataFrame | None = None, **tables) -> pd.DataFrame:
    """The claims of the run with other tables of evidence, None: without one, by name."""
    changed = {name: table for name, table in (run.evidence | tables).items() if table is not None}
    inputs = claim_inputs(run)
    inputs = replace(
        inputs, evidence=changed, findings=inputs.findings if findings is None else findings
    )
    return claims_table([inputs]).set_index("claim")[["paper_decision", "strict_decision"]]


@pytest.fixture
def bare(tmp_path: Path) -> RunView:
    return add_claims(make_run(tmp_path / "run", layers=3, n=60))


def test_accuracy_and_popularity_by_pandas_from_the_stored_files(run: RunView) -> None:
    layer = 2
    samples = used_samples(run.path).assign(log=covariates_of(run.path).log_popularity)
    pathways = pd.read_parquet(run.path / "tables" / "pathways.parquet")
    for mode in ("paper", "strict"):
        rows = pathways[(pathways["layer"] == layer) & (pathways["mode"] == mode)]
        joined = rows.merge(samples, on="id", validate="one_to_one")
        joined["right"] = joined["verdict"] == "right"
        expected = joined.groupby(["prediction", "pathway"])[["right", "log"]].mean()
        for (predicted, pathway), value in expected.iterrows():
            subset = ("predicted-right", "predicted-wrong")[predicted]
            at = {"layer": layer, "mode": mode, "subset": subset, "pathway": pathway}
            found = where(run.evidence["boundary"], **at)
            assert where(found, measure="accuracy")["value"].item() == pytest.approx(value["right"])
            assert where(found, measure="popularity")["value"].item() == pytest.approx(value["log"])


def test_the_planted_pathways_decide_the_claims(run: RunView) -> None:
    found = run.claims.set_index("claim")
    for claim in ("patching-flips-q", "answer-only-moves-q"):
        assert found.loc[claim, ["paper_decision", "strict_decision"]].tolist() == ["holds"] * 2
    assert found.loc["state-knows-pathway", "strict_decision"] != "holds"  # nothing was planted
    at = {"layer": chosen_layer(run, "simulated"), "mode": "paper", "subset": "all"}
    rows = where(run.evidence["patching"], intervention="patch-matched", **at)
    q, a = (where(rows, pathway=p)["flip_rate"].item() for p in ("Q", "A"))
    assert found.loc["patching-flips-q", "paper_value"] == pytest.approx(q - a)


def test_saliency_heads_and_windows_have_claims_of_their_own(run: RunView) -> None:
    """Two humps in every class, one head that does the work, a window that does all."""
    found = run.claims.set_index("claim")
    for claim in ("saliency-two-humps", "heads-carry", "window-moves-q"):
        assert found.loc[claim, ["paper_decision", "strict_decision"]].tolist() == ["holds"] * 2
    layer = chosen_layer(run, "simulated")
    rows = where(run.evidence["windows"], layer=layer, mode="strict", layers="window:5")
    q, a = (where(rows, pathway=p)["delta_p"].item() for p in ("Q", "A"))
    assert found.loc["window-moves-q", "strict_value"] == pytest.approx(q - a)
    heads = run.evidence["heads"]
    single = heads[heads["head"] >= 0]["delta_p"]
    assert found.loc["heads-carry", "paper_value"] == pytest.approx(single.min())
    four = where(heads, set="top4")["delta_p"].item()
    assert found.loc["heads-carry", "strict_value"] == pytest.approx(four)


def test_a_dip_test_that_does_not_reject_shows_nothing(run: RunView) -> None:
    """It fails nothing either; and what is not about Q and A does not need two pathways."""
    one = run.evidence["saliency"].assign(dip_p=0.6)
    split = run.evidence["saliency"]
    split = split.assign(dip_p=np.where(split["subset"] == "wrong", 0.6, 1e-4))
    none = run.findings.assign(finding="uniform")
    for salient, paper, strict in (
        (one, "not shown", "not shown"), (split, "holds", "not shown"),
        (run.evidence["saliency"], "holds", "holds"),
    ):  # fmt: skip
        found = decisions(run, findings=none, saliency=salient)
        assert found.loc["saliency-two-humps"].tolist() == [paper, strict]
        assert found.loc["window-moves-q", "strict_decision"] == "not shown"


def test_the_claims_about_detectors_stand_with_the_others(run: RunView, tmp_path, cli) -> None:
    """After `detect eval` wrote them into the run's folder; of its own datasets alone."""
    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)
    ends = {"value": -0.04, "decision": "fails", "low": -0.07, "high": -0.01, "p": 0.01}
    rows = [
        {"claim": claim, "statement": f"{claim} is said", "source": "text", "dataset": dataset}
        | {f"strict_{name}": value for name, value in ends.items()}
        for claim in ("mop-beats-probe", "pr-beats-probe")
        for dataset in ("simulated", "elsewhere")
    ]
    pd.DataFrame(rows).to_csv(folder / "tables" / "detector_claims.csv", index=False)
    view = RunView.open(folder)
    table = claims_of([view])
    mine = table[table["claim"].str.contains("beats-probe")]
    assert list(mine["dataset"]) == ["simulated", "simulated"]
    assert mine["strict_decision"].tolist() == ["fails"] * 2
    assert mine["paper_decision"].tolist() == ["not measured"] * 2
    assert "pr-beats-probe is said" in page(view).lower()
    code, said, _ = cli("claims", folder)
    assert code == 0
    assert "mop-beats-probe" in said


def test_detect_eval_writes_the_report_of_an_analysed_run_again(run: RunView, tmp_path, cli):
    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)
    (folder / "report.html").write_text("old", encoding="utf-8")
    words = ("--methods", "probe,mop", "--folds", "3", "--resamples", "1000")
    code, said, _ = cli("detect", "eval", folder, *words)
    assert code == 0
    assert said.splitlines()[-1] == str(folder / "report.html")
    assert "mop-beats-probe" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_patch_that_does_no_more_than_its_control_does_not_hold(run: RunView) -> None:
    """Strict mode asks for more than paper mode: the control must not do the same."""
    table = run.evidence["patching"]
    same = where(table, intervention="patch-matched").assign(intervention="patch-other")
    others = table[table["intervention"] != "patch-other"]
    patching = pd.concat([others, same])
    none = run.evidence["patching_gap"].assign(gap=0.0, gap_low=-0.05, gap_high=0.05)
    for gap, expected in ((none, "undecided"), (None, "not measured")):
        found = decisions(run, patching=patching, patching_gap=gap).loc["patching-flips-q"]
        assert found.tolist() == ["holds", expected]


def test_awareness_must_beat_what_is_simpler(run: RunView) -> None:
    base, gaps = run.evidence["awareness"], run.evidence["awareness_gap"]
    ends = {"auroc": 0.9, "low": 0.88, "high": 0.92}
    knows = base.assign(
        **{n: base[n].mask(base["predictor"] == "state", v) for n, v in ends.items()}
    )
    beaten = base.assign(**ends)  # the logit alone does as well
    for table, gap, expected in ((knows, 0.3, "holds"), (beaten, 0.0, "undecided")):
        pairs = gaps.assign(gap=gap, low=gap - 0.02, high=gap + 0.02)
        found = decisions(run, awareness=table, awareness_gap=pairs).loc["state-knows-pathway"]
        assert found.tolist() == ["holds", expected]


def test_abstentions_become_a_claim_only_where_they_were_read(run: RunView) -> None:
    assert "q-abstains-less" not in set(run.claims["claim"])
    rows = where(run.evidence["boundary"], measure="accuracy")
    rows = rows.assign(measure="abstention", value=-0.3, low=-0.35, high=-0.25)
    found = decisions(run, boundary=pd.concat([run.evidence["boundary"], rows]))
    assert found.loc["q-abstains-less", "strict_decision"] == "holds"


def test_charts_show_the_numbers_of_the_tables(run: RunView) -> None:
    chart = chart_data(PIECES["patching"][1](run))
    assert [view["label"] for view in chart["views"]] == ["Strict mode", "Paper mode"]
    lines = {curve["label"]: curve for curve in chart["views"][0]["curves"]}
    rows = where(run.evidence["patching"], intervention="patch-matched", mode="strict",
                 subset="all", pathway="Q")  # fmt: skip
    q = lines["Q-Anchored (Simulated)"]
    assert q["value"] == pytest.approx((100 * rows["flip_rate"]).tolist())
    (heads,) = chart_data(PIECES["heads"][1](run))["views"]
    assert np.unravel_index(np.argmin(heads["cells"]), (4, 3)) == (1, 1)
    rows = where(run.evidence["heads"], block=2, head=1, set="")
    assert heads["cells"][1][1] == pytest.approx(rows["delta_p"].mean())


def test_densities_are_of_one_value_a_sample(run: RunView) -> None:
    rows = summed_logs(run, "simulated", "probe", "exact")
    whole = run.saliency.groupby("id")["saliency"].sum()
    assert len(rows) == len(whole) == 160
    assert 10 ** rows.set_index("id")["log"][whole.index[7]] == pytest.approx(whole.iloc[7])
    for series in PIECES["saliency"][1](run).views[0].series:
        assert trapezoid(series.value, series.layer) == pytest.approx(1, abs=0.1)


def test_the_report_has_each_piece_folded_with_its_tables(run: RunView, bare: RunView) -> None:
    text = page(run)
    section = text[text.index("<h2>The other evidence") :]
    section = section[: section.index("</section>")]
    for name, (title, _) in PIECES.items():
        assert title in section and f'id="evidence-{name.replace("_", "-")}"' in section
    for name in run.evidence:
        assert f"Rows of tables/{name}.csv" in section
    assert section.count("<details>") == len(PIECES) + len(run.evidence)
    at = {"layer": chosen_layer(run, "simulated"), "mode": "paper", "subset": "all"}
    rows = where(run.evidence["patching"], intervention="patch-matched", pathway="Q", **at)
    assert f'<td class="number">{rows["flip_rate"].item():.2f}</td>' in section
    assert "The other evidence" not in page(bare)


def test_donors_are_counted(run: RunView) -> None:
    ids = run.samples["id"].tolist()[:3]
    rows = [(ids[0], "matched", True, True), (ids[1], "matched", True, False)]
    rows += [(ids[2], "matched", False, True), (ids[2], "random", False, False)]
    other = RunView(run.path, run.info)
    other.__dict__["donors"] = pd.DataFrame(
        rows, columns=["id", "kind", "same_relation", "resized"]
    )
    caption = PIECES["patching"][1](other).caption
    assert "Of 3 matched donors 2 share the relation, and 2 have another" in caption


def test_every_figure_that_is_named_can_be_drawn(run: RunView, bare: RunView) -> None:
    names = figure_names(run)
    assert len(names) == 5 + len(pieces_of(run)) == 5 + len(PIECES) and not pieces_of(bare)
    drawn = {name: figure_of(run, name) for name in names}
    assert all(figure.axes for figure in drawn.values())
    assert len([ax for ax in drawn["windows"].axes if ax.axison]) == 6  # 3 choices in 2 modes
    notes = [text.get_text() for ax in drawn["saliency"].axes for text in ax.texts]
    p = where(run.evidence["saliency"], subset="all")["dip_p"].iloc[0]
    assert f"all {p:.2g}" in notes[0]
