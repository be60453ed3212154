"""A detector on disk: the same scores again, and nothing but detectors is read."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from kit.detect_worlds import material, plain, two_pathways, write_run
from sklearn.metrics import roc_auc_score

from anchorscope.detect.detector import Detector
from anchorscope.detect.kinds import CHOSEN
from anchorscope.detect.material import from_run
from anchorscope.detect.method import pathway_groups
from anchorscope.detect.side_probes import learn_beliefs
from anchorscope.errors import UserError
from anchorscope.run_folder.view import RunView


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunView:
    folder = tmp_path_factory.mktemp("runs") / "made-up"
    return RunView.open(write_run(folder, [two_pathways(n=240)]))


@pytest.fixture(scope="module")
def saved(run, tmp_path_factory):
    """A detector and the folder it was saved in."""
    made = Detector.train(run, method="probe", folds=3, resamples=100)
    return made, made.save(tmp_path_factory.mktemp("detectors") / "probe")


@pytest.mark.parametrize("method", CHOSEN)
def test_a_detector_read_again_gives_the_same_numbers(run, tmp_path, method):
    made = Detector.train(run, method=method, folds=3, resamples=100)
    again = Detector.load(made.save(tmp_path / "detector"))
    material = from_run(run, "made-up")
    for before, after in zip(made.score_of(material), again.score_of(material), strict=True):
        assert np.array_equal(before, after)
    clean = material.layer("clean", 1)
    assert np.array_equal(made.distance.place(clean), again.distance.place(clean))
    assert 0.3 < made.distance.place(clean).mean() < 0.7 < made.distance.place(clean + 9).min()
    assert again.threshold == made.threshold
    assert again.name == made.name == method
    assert again.evaluation == made.evaluation


def test_card_and_description_hold_model_threshold_and_evaluation(saved):
    made, folder = saved
    about = json.loads((folder / "detector.json").read_text())
    for key in ("model", "threshold", "calibration", "evaluation", "licence", "prompt", "id"):
        assert about[key]
    card = (folder / "README.md").read_text()
    assert f"{made.evaluation['auroc']:.3f}" in card
    assert made.calibrated_on in card
    assert "license: other" in card.split("---")[1]


def test_a_missing_folder_and_a_missing_repository_are_errors(saved, tmp_path):
    with pytest.raises(UserError, match=r"detector.json is missing"):
        Detector.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="the hub gave no repository"):
        Detector.load("nobody/nothing")  # the hub is not reached in tests


def test_what_cannot_be_used_outside_a_run_is_not_trained(run):
    with pytest.raises(UserError, match=r"'mop' is only compared .* Accepted: auto, combined, pro"):
        Detector.train(run, method="mop")
    with pytest.raises(UserError, match=r"Unknown dataset of the run 'x'. Accepted: made-up"):
        Detector.train(run, method="probe", datasets=["x"])


def test_few_answers_give_a_warning_that_is_in_the_card_too(tmp_path):
    small, large = (
        Detector.train(
            RunView.open(write_run(tmp_path / str(n), [plain(n=n, strength=1.0)])),
            method="probe", folds=3, resamples=200,
        )
        for n in (60, 1200)
    )  # fmt: skip
    assert small.caution.startswith("Trained on few answers: 60, 30 of them wrong. Its AUROC is")
    assert small.caution in (small.save(tmp_path / "detector") / "README.md").read_text()
    assert large.caution == ""
    unsure = [one.evaluation["cannot_say"] for one in (small, large)]
    assert unsure[0] > unsure[1] > 0
    low, high = small.band
    assert low <= small.threshold <= high
    outcomes = [
        small.outcome(p)[0] for p in (low - 0.01, (low + high) / 2, high + 0.01, float("nan"))
    ]
    assert outcomes == ["right", "cannot say", "wrong", "cannot say"]


def test_a_promised_risk_is_kept_with_the_detector(tmp_path):
    run = RunView.open(write_run(tmp_path / "run", [plain(n=900, strength=1.5)]))
    made = Detector.train(run, method="probe", folds=3, resamples=100, risk=0.1)
    assert 200 < made.promise.entities < 400  # a third, never learnt from
    assert made.trained_on["answers"] == 900 - made.promise.entities
    again = Detector.load(made.save(tmp_path / "detector"))
    assert (again.promise, again.band, again.id) == (made.promise, made.band, made.id)
    assert str(made.promise) in (tmp_path / "detector" / "README.md").read_text()
    assert again.band[0] == again.threshold  # what is accepted is what is promised
    new = plain(n=900, strength=1.5, seed=5)
    accepted = again.score_of(new)[1] <= again.threshold
    assert accepted.mean() > 0.3
    assert new.z[accepted].mean() < 0.14
    with pytest.raises(UserError, match=r"risk is 2. Accepted: a share between 0 and 1"):
        Detector.train(run, method="probe", risk=2)


def test_a_warning_is_trained_where_the_run_kept_the_question_and_saved_with_it(tmp_path):
    made = plain(n=240, layers=1)
    rng = np.random.default_rng(0)
    states_asked = rng.standard_normal((240, 1, 8))
    states_asked[:, 0, 3] += 0.8 * (2 * made.z - 1)
    states = {name: made.layer(name, 1)[:, None] for name in ("clean", "knockout")}
    world = material(made.z, states | {"question-only": states_asked})
    run = RunView.open(write_run(tmp_path / "run", [world]))
    trained = Detector.train(run, method="probe", folds=3, resamples=100)
    again = Detector.load(trained.save(tmp_path / "detector"))
    assert again.pre_answer.evaluation == trained.pre_answer.evaluation
    found = again.pre_answer.probability(states_asked[:, 0])
    assert np.array_equal(found, trained.pre_answer.probability(states_asked[:, 0]))
    assert roc_auc_score(made.z, found) > 0.8
    assert again.pre_answer.evaluation["auroc"] == pytest.approx(0.87, abs=0.05)  # Φ(0.8 √2)
    assert "reads the question alone" in (tmp_path / "detector" / "README.md").read_text()


@pytest.mark.parametrize("rare", [0, 1])
def test_an_outcome_is_on_its_side_of_one_half_however_rare_a_class_is(tmp_path, rare):
    world = plain(n=600, strength=0.7)
    kept = world.take((world.z != rare) | (np.arange(600) % 5 == 0))
    run = RunView.open(write_run(tmp_path / "run", [kept]))
    trained = Detector.train(run, method="probe", folds=3, resamples=100)
    assert trained.threshold < 0.4 if rare else trained.threshold > 0.6  # separates them best
    low, high = trained.band
    assert low <= 0.5 <= high
    between = 0.45 if rare else 0.55
    assert trained.outcome(between)[0] == "cannot say"
    assert trained.outcome(low)[0] == "right" and trained.outcome(high + 0.01)[0] == "wrong"


def test_too_few_answers_are_counted(tmp_path):
    folder = write_run(tmp_path / "few", [plain(n=24)])
    with pytest.raises(UserError, match="24 answers are too few to train a detector on: 60 are"):
        Detector.train(folder, method="probe")


def test_a_repository_of_the_hub_is_read_through_its_local_copy(saved, tmp_path, monkeypatch):
    """The hub's own files on this disk, as a download leaves them; the network is not asked."""
    from huggingface_hub import constants

    made, folder = saved
    home = tmp_path / "hub" / "models--org--detector"
    shutil.copytree(folder, home / "snapshots" / ("0" * 40))
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert Detector.load("org/detector").threshold == made.threshold


def test_balanced_answers_are_as_many_of_each_class_and_the_same_every_time(tmp_path):
    folder = RunView.open(write_run(tmp_path / "run", [plain(n=240)]))
    all_of_it = from_run(folder, "made-up")
    few = int(np.bincount(all_of_it.z).min())
    whole, part = (from_run(folder, "made-up", limit=limit) for limit in (10_000, 60))
    assert (np.bincount(whole.z) == few).all() and (np.bincount(part.z) == 30).all()
    assert set(part.ids) <= set(whole.ids)
    assert part.ids == from_run(folder, "made-up", limit=60).ids
    place = {id: row for row, id in enumerate(all_of_it.ids)}
    rows = [place[id] for id in part.ids]
    np.testing.assert_array_equal(part.layer("clean", 2), all_of_it.layer("clean", 2)[rows])


def test_beliefs_are_kept_and_sort_right_from_wrong_at_every_layer(tmp_path):
    world = plain(n=240, layers=3)
    run = RunView.open(write_run(tmp_path / "run", [world]))
    trained = Detector.train(run, method="probe", folds=3, resamples=100)
    again = Detector.load(trained.save(tmp_path / "detector"))
    states = np.stack([world.layer("clean", k) for k in (1, 2, 3)], axis=1)
    belief = again.beliefs.wrong(states)
    assert np.array_equal(belief, trained.beliefs.wrong(states)) and belief.shape == (240, 3)
    best = max(roc_auc_score(world.z, belief[:, k]) for k in range(3))
    assert best > 0.8
    # Calibrated: the mean belief is the share of wrong answers.
    assert belief.mean(axis=0) == pytest.approx(np.full(3, world.z.mean()), abs=0.05)


def test_the_gate_tells_the_planted_pathway(tmp_path):
    world = two_pathways(n=400)
    run = RunView.open(write_run(tmp_path / "run", [world]))
    beliefs = learn_beliefs(from_run(run, world.name))
    states = np.stack([world.layer("clean", k) for k in range(1, world.bank.layers + 1)], axis=1)
    groups = pathway_groups(world, beliefs.gate_layer, C=3.0)
    placed = np.isfinite(groups)
    assert roc_auc_score(groups[placed], beliefs.question_anchored(states)[placed]) > 0.75
