"""What can be known before the model is loaded is said then; a failed start leaves no folder."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from kit.detect_worlds import plain, write_run
from kit.tiny import save_tiny

from anchorscope.run_folder.disk import check_writable

ANSWERS = {"answers": ["sea"]}


def questions(file: Path, count: int, things: int = 1000) -> Path:
    """A file of so many questions about so many rivers."""
    rows = [
        {"id": n, "question": f"Where does {name} end, in {n}?", "subject": name}
        for n in range(count)
        for name in [f"river {n % things}"]
    ]
    file.write_text("\n".join(json.dumps(row | ANSWERS) for row in rows), encoding="utf-8")
    return file


def no_model(monkeypatch) -> None:
    """Fails whoever loads a model."""

    def load(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("anchorscope.pipeline.prepare.load_model", load)


@pytest.mark.parametrize(
    ("count", "things", "more", "said"),
    [
        (1, 1, [], "one has 1 questions; probes need at least 20 right and 20 wrong answers."),
        (39, 39, [], "one has 39 questions; probes need at least 20 right"),
        (60, 4, [], "The questions are about 4 entities, fewer than the 5 folds."),
        (60, 60, ["--verdicts", "verdicts.jsonl"], "of which 50 are given as right and 0 as wrong"),
    ],
)
def test_too_little_to_learn_from_is_said_before_the_model_is_loaded(
    cli, tmp_path, monkeypatch, count, things, more, said
):
    no_model(monkeypatch)
    monkeypatch.chdir(tmp_path)
    questions(tmp_path / "one.jsonl", count, things)
    rows = [{"id": f"one:all:{n}", "right": 1} for n in range(50)]
    Path("verdicts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    code, _, error = cli("run", "--data", "one.jsonl", "--out", "runs/one", *more)
    assert code == 2 and said in error
    assert not Path("runs").exists()


@pytest.mark.parametrize("verb", [["run"], ["detect", "collect"]])
def test_a_model_that_cannot_be_loaded_leaves_no_folder(cli, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    file = questions(tmp_path / "many.jsonl", 60)
    Path("broken").mkdir()
    Path("broken/config.json").write_text("{}")
    code, _, error = cli(*verb, "--model", "broken", "--data", file, "--out", "runs/deep/one")
    assert code == 2 and "broken" in error
    assert not Path("runs").exists()


def test_a_disk_that_is_too_small_is_told_before_the_model_is_loaded(cli, tmp_path, monkeypatch):
    no_model(monkeypatch)
    model = tmp_path / "model"
    save_tiny(model)
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Free)
    file = questions(tmp_path / "many.jsonl", 60)
    for verb in (["run"], ["detect", "collect"]):
        code, _, error = cli(*verb, "--model", model, "--data", file, "--out", tmp_path / "out")
        assert code == 2 and "and 0.0 GB are free there" in error
    assert not (tmp_path / "out").exists()


class _Free:
    free = 1000


def test_a_place_that_cannot_be_a_folder_is_refused_without_making_it(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Exception, match=r"file' is a file, so '.*' cannot be a folder"):
        check_writable(tmp_path / "file" / "run")
    check_writable(tmp_path / "new" / "run")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else_is_refused(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(Exception, match="cannot be written to"):
        check_writable(tmp_path / "run")


def test_a_detector_is_not_written_over_something_else(cli, tmp_path):
    """Said before anything is trained: a README that is somebody's own would be gone."""
    run = write_run(tmp_path / "run", [plain(n=120, strength=2.0)])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/README.md").write_text("years of work")
    words = ("detect", "train", run, "--method", "probe", "--folds", "3", "--out")
    code, _, error = cli(*words, tmp_path / "mine")
    assert code == 2 and "exists and is not a detector's folder" in error
    assert (tmp_path / "mine/README.md").read_text() == "years of work"
    code, _, error = cli(*words, tmp_path / "mine/README.md")
    assert code == 2 and "is a file" in error
