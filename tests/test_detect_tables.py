"""The study as a whole: tables, transfer, figures and the command line."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from kit.detect_worlds import plain, sisters, two_sources, write_run

from anchorscope.claims.about_detectors import detector_claims
from anchorscope.detect.compare import detectors_table, to_latex, to_markdown
from anchorscope.detect.evaluate import evaluate, transfer_table, without_entities
from anchorscope.detect.kinds import METHODS, make_method
from anchorscope.detect.material import join
from anchorscope.detect.study import study
from anchorscope.errors import UserError
from anchorscope.progress import Quiet
from anchorscope.stats.ranking import auroc, ece

NAMES = ("min-log-prob", "length", "tfidf-question", "probe", "mop", "auto")


@pytest.fixture(scope="module")
def scores() -> pd.DataFrame:
    return evaluate(plain(n=160, layers=2), names=NAMES, folds=3)


def test_every_answer_is_scored_once_by_each_detector_and_split(scores):
    counts = scores.groupby(["split", "detector"])["id"].agg(["size", "nunique"])
    assert (counts == 160).all(axis=None)
    assert len(counts) == 2 * len(NAMES)
    assert scores["probability"].between(0, 1).all()


def test_the_table_is_recomputed_from_the_scores(scores):
    table = detectors_table(scores, model="m", resamples=200)
    assert len(table) == 2 * len(NAMES)
    for row in table.to_dict("records"):
        rows = scores[(scores["split"] == row["split"]) & (scores["detector"] == row["detector"])]
        assert row["auroc"] == auroc(rows["z"], rows["score"])
        assert row["auroc_low"] <= row["auroc"] <= row["auroc_high"]
        assert row["brier"] == pytest.approx(((rows["probability"] - rows["z"]) ** 2).mean())
        probe = table[(table["split"] == row["split"]) & (table["detector"] == "probe")]["auroc"]
        assert row["vs_probe"] == pytest.approx(row["auroc"] - probe.item())
    own = table[table["detector"] == "probe"]
    assert own["vs_probe_p"].isna().all()
    text = table[table["detector"].isin(["length", "tfidf-question"])]
    for split, rows in text.groupby("split"):
        best = rows.loc[rows["auroc"].idxmax(), "detector"]
        assert set(table[table["split"] == split]["vs_text_is"]) == {best}


def test_the_planted_difference_is_starred_and_nothing_else_is(scores):
    table = detectors_table(scores, model="m", resamples=1000).set_index(["split", "detector"])
    assert table.loc[("entity", "min-log-prob"), "vs_probe_p"] < 0.05
    assert not table.loc[("entity", "auto"), "vs_probe_p"] < 0.05


def worlds_apart(detectors: int) -> pd.DataFrame:
    """Scores of a probe that knows everything and of others that know nothing."""
    rng, z = np.random.default_rng(0), np.arange(200) % 2
    names = ["probe", *[name for name in METHODS if name != "probe"][: detectors - 1]]
    made = {name: rng.standard_normal(200) + 9 * z * (name == "probe") for name in names}
    return pd.concat(
        pd.DataFrame({"dataset": "d", "split": "entity", "detector": name, "fold": 0,
                      "id": np.arange(200), "z": z, "score": made[name],
                      "probability": 0.5, "ms": 1.0, "chosen": ""})
        for name in names
    )  # fmt: skip


@pytest.mark.parametrize("detectors", [2, 10, 18])
def test_as_many_resamples_as_it_takes_to_tell_a_difference(detectors):
    """The fewest that are accepted leave the clearest difference a p just below 0.05."""
    scores, tests = worlds_apart(detectors), detectors - 1
    least = max(100, 40 * tests)
    for resamples in (least, None):
        table = detectors_table(scores, model="m", resamples=resamples)
        others = table[table["detector"] != "probe"]
        drawn = table["resamples"].unique().item()
        assert drawn == (resamples or max(2000, 200 * tests))
        assert others["vs_probe_p"].to_numpy() == pytest.approx(2 * tests / (drawn + 1))
        assert (others["vs_probe_p"] < 0.05).all() and others["vs_probe_at_floor"].all()
    assert not table[table["detector"] == "probe"]["vs_probe_at_floor"].any()
    marked = table.filter(regex="vs_(probe|text)_at_floor").to_numpy().sum()
    assert to_markdown(table).count("*†") == marked >= tests
    with pytest.raises(UserError, match=f"Accepted: {least} or more for {detectors} detectors"):
        detectors_table(scores, model="m", resamples=least - 1)


def test_markdown_and_latex_have_a_row_for_each_detector(scores):
    table = detectors_table(scores, model="m", resamples=200)
    markdown, latex = to_markdown(table), to_latex(table)
    own, head = len(NAMES) + 2, len(NAMES) + 1  # the first table begins the text
    assert markdown.count("\n| ") == 2 * own + head
    first = markdown.splitlines()[2 + NAMES.index("probe")]
    by_split = table[table["detector"] == "probe"].set_index("split")["auroc"]
    assert first == f"| probe | {by_split['random']:.3f} / {by_split['entity']:.3f} |"
    assert latex.count(r"\\") == 2 * (len(NAMES) + 1)
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 2
    widths = {line.count(" & ") for line in latex.splitlines() if line.endswith(r"\\")}
    assert len(widths) == 1


def test_transfer_finds_which_datasets_go_together():
    table = transfer_table(sisters(), model="m", names=("probe",), resamples=100)
    found = table.set_index(["kind", "train", "test"])["auroc"]
    assert found["transfer", "d0", "d1"] > 0.9
    assert found["transfer", "d0", "d2"] < 0.1
    assert found["transfer", "d2", "d1"] < 0.1
    assert ("left-out", "d0+d2", "d1") in found.index
    assert len(found) == 6 + 3
    with pytest.raises(UserError, match="Transfer needs two datasets"):
        transfer_table(sisters()[:1], model="m")


def test_transfer_is_compared_with_the_best_single_baseline_on_the_same_draws():
    parts = [two_sources(name=name, direction=n, seed=n) for n, name in enumerate("ab")]
    names = ("min-log-prob", "length", "probe", "combined")
    table = transfer_table(parts, model="m", names=names, resamples=400)
    for (train, test), rows in table.groupby(["train", "test"]):
        rows = rows.set_index("detector")
        assert set(rows["vs_best_is"]) == {"min-log-prob"}  # the probe's direction does not travel
        best, probe = rows.loc["min-log-prob"], rows.loc["probe"]
        assert best["vs_best"] == 0 and np.isnan(best["vs_best_p"])
        assert probe["vs_best"] == pytest.approx(probe["auroc"] - best["auroc"])
        assert probe["vs_best_p"] < 0.05 and probe["vs_best_high"] < 0
        source, other = ({p.name: p for p in parts}[name] for name in (train, test))
        fitted = make_method("min-log-prob").fit(source)
        said = fitted.calibration_.probability(fitted.decision_function(other))
        assert best["ece"] == pytest.approx(ece(other.z, said))


def test_an_entity_of_the_test_is_not_learnt_from():
    train, test = plain(n=120, name="a"), plain(n=40, name="b")
    left = without_entities(train, test)
    assert not set(left.entities) & set(test.entities)
    assert len(left) == 80


def test_joined_materials_keep_their_own_states_and_ids():
    parts = sisters()[:2]
    both = join(parts)
    assert both.ids == parts[0].ids + parts[1].ids
    assert np.array_equal(both.layer("clean", 1)[120:], parts[1].layer("clean", 1))
    picked = both.take(np.array([5, 130]))
    assert np.array_equal(picked.layer("clean", 1)[1], parts[1].layer("clean", 1)[10])


def test_runs_of_two_models_are_not_mixed(tmp_path):
    a = write_run(tmp_path / "a", [plain(n=60, name="a")], weights="1")
    b = write_run(tmp_path / "b", [plain(n=60, name="b")], weights="2")
    with pytest.raises(UserError, match="different models"):
        study([a, b])


class Heard(Quiet):
    """A listener that remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_transfer_says_where_questions_were_asked_in_different_ways(tmp_path):
    a, b, c = sisters()
    runs = [write_run(tmp_path / "a", [a]), write_run(tmp_path / "b", [b], prompt="chat")]
    alike = write_run(tmp_path / "c", [c])
    how = {"names": ("min-log-prob",), "resamples": 100, "transfer": True}
    heard = Heard()
    study([runs[0], alike], progress=heard, **how)
    assert heard.notes == []
    study(runs, progress=heard, **how)
    assert len(heard.notes) == 1
    assert "d0 as text, d1 as chat" in heard.notes[0]


def test_claims_follow_the_paired_comparison():
    """A mixture that is clearly better, clearly worse, and one that cannot be told apart."""
    rows = []
    for name, value, p in (("a", 0.02, 0.01), ("b", -0.03, 0.04), ("c", 0.05, 0.2)):
        for split in ("random", "entity"):
            vs = {"vs_probe": value, "vs_probe_p": p, "vs_probe_low": -1.0, "vs_probe_high": 1.0}
            rows.append({"dataset": name, "split": split, "detector": "mop", **vs})
    found = detector_claims(pd.DataFrame(rows)).set_index("dataset")
    assert found["strict_decision"].to_dict() == {"a": "holds", "b": "fails", "c": "undecided"}
    assert set(found["claim"]) == {"mop-beats-probe"}
    assert found["paper_value"].to_dict() == {"a": 0.02, "b": -0.03, "c": 0.05}
    assert detector_claims(pd.DataFrame({"detector": ["pr"], "dataset": ["a"]})).empty
