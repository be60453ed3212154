"""A study's file, the check of it, and the plan: disk, and hours once measured."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from kit.study_fixture import tiny_study
from kit.tiny import tiny_lm

from anchorscope.answers.verdicts import read_verdicts, verdicts_hash
from anchorscope.config import Config
from anchorscope.datasets import load_questions
from anchorscope.errors import UserError
from anchorscope.pipeline.request import resolve
from anchorscope.pipeline.study.file import read_study, shipped, study_of
from anchorscope.pipeline.study.study import plan_study
from anchorscope.run_folder.manifest import info_text


def test_hours_are_those_of_the_shards_that_were_read(tmp_path: Path) -> None:
    """None before the first shard; then the seconds of a shard by those that are left."""
    study = tiny_study(tmp_path, {"small": "llama"})
    assert plan_study(study, tmp_path / "out").runs[0].hours is None
    folder = tmp_path / "out" / "small"
    (folder / "answers").mkdir(parents=True)
    (folder / "answers/00000.parquet").touch()
    info = {"stages": {"answers and states": {"seconds": 3600.0}}, "shard": 50}
    (folder / "run.json").write_bytes(info_text(info))
    plan = plan_study(study, tmp_path / "out")
    assert plan.runs[0].hours == pytest.approx(3)  # of four shards, one is read


def test_disk_is_checked_first(tmp_path: Path, monkeypatch) -> None:
    tiny_lm("llama").save_pretrained(tmp_path / "small")
    content = {"data": ["atlas"], "models": [{"model": str(tmp_path / "small")}]}
    study = study_of(content, "s.toml")
    assert plan_study(study, tmp_path / "out").problems == []
    monkeypatch.setattr("anchorscope.pipeline.study.study.read_shape", lambda *_, **__: (80, 10**9))
    problems = " ".join(plan_study(study, tmp_path / "out").problems)
    assert "GB more, and" in problems and "are free there" in problems
    assert plan_study(study, tmp_path / "out", check_disk=False).problems == []


def test_the_shipped_studies_are_what_they_say() -> None:
    assert list(shipped()) == ["paper", "published", "quick", "replication"]
    published = read_study("published")
    assert {p: [m.name for m in models] for p, models in published.panels.items()} == {
        "Llama-3.2": ["Llama-3.2-1B", "Llama-3.2-3B"],
        "Qwen3": ["Qwen3-8B", "Qwen3-32B"],
    }
    assert published.data == ("popqa", "triviaqa", "hotpotqa", "nq")
    for name in shipped():
        study = read_study(name)
        for model in study.models:
            study.config(model)  # every option is one
    assert len(read_study("paper").models) == 15
    assert read_study("replication").config(read_study("replication").models[0]).limit is None


def test_places_and_options_override_the_file() -> None:
    study = read_study("replication").with_places({"popqa": "p.jsonl", "SmolLM2-135M": "m"})
    study = study.with_options({"limit": 7, "evidence": "none"})
    config = study.config(study.models[0])
    assert (config.model, config.data[0], config.limit, config.evidence) == ("m", "p.jsonl", 7, ())
    with pytest.raises(UserError, match="Unknown model or dataset to place 'x'"):
        study.with_places({"x": "y"})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"data": ["atlas"]}, r"needs data .* and one \[\[models\]\]"),
        ({"data": [], "models": [{"model": "a/b"}]}, r"needs data"),
        ({"data": ["atlas"], "models": [{"name": "b"}]}, "each with its model"),
        ({"data": ["atlas"], "models": [{"model": "a/b"}, {"model": "c/b"}]}, "two models named"),
        (
            {"data": ["atlas"], "models": [{"model": "a/b", "name": "../x"}]},
            "a folder cannot be called so",
        ),
        ({"data": ["atlas"], "models": [{"model": "a/b"}], "speed": 1}, "Unknown part of s.toml"),
    ],
)
def test_a_file_that_is_no_study(content: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        study_of(content, "s.toml")


def test_everything_wrong_is_said_at_once_and_nothing_is_made(cli, tmp_path: Path) -> None:
    file, out = tmp_path / "wrong.toml", tmp_path / "out"
    file.write_text(
        'data = ["atlas", "nosuch.jsonl"]\n[[models]]\nmodel = "no/such-model"\n'
        '[[models]]\nmodel = "gone.gguf"\n[[models]]\nmodel = "bundled"\nspeed = 3\n'
    )
    code, _, error = cli("study", file, "--out", out)
    assert code == 2
    assert "The study was not started. To fix (4):" in error
    for words in (
        "nosuch.jsonl: Unknown dataset or file", "such-model: The model 'no/such-model' could",
        "gone: There is no file gone.gguf", "bundled: Unknown option of a run 'speed'",
    ):  # fmt: skip
        assert words in error
    assert not out.exists()


def test_plan_prints_the_cost_of_each_model(cli, tmp_path: Path) -> None:
    lines = ['data = ["atlas"]', "[options]", "limit = 50"]
    for name in ("llama", "qwen3"):
        tiny_lm(name).save_pretrained(tmp_path / name)
        lines += ["[[models]]", f"model = '{tmp_path / name}'"]
    (tmp_path / "two.toml").write_text("\n".join(lines))
    code, out, _ = cli("study", tmp_path / "two.toml", "--plan", "--out", tmp_path / "out")
    assert code == 0
    for words in ("llama", "qwen3", "questions", "50", "GB of disk", "hours left"):
        assert words in out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,right\nx:1,1\n", "has no verdict on any of the 3 questions"),
        ("id,right\nx:1,maybe\n", "Row 1 of v.csv: 'maybe' is no verdict. Accepted: 1, true or"),
        ("id,right\nx:1,1\nx:1,0\n", "Row 2 of v.csv has the id 'x:1' a second time"),
        ("id,score\nx:1,1\n", "Row 1 of v.csv lacks a verdict"),
    ],
)
def test_mistakes_in_verdicts_are_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "v.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=words):
        resolve("m", load_questions("atlas", limit=3), Config(verdicts=str(file)))


def test_verdicts_are_known_by_their_content(tmp_path: Path) -> None:
    questions = load_questions("atlas", limit=3)
    ids = [q.id for q in questions]
    first, second = tmp_path / "a.csv", tmp_path / "b.jsonl"
    with first.open("w", newline="") as text:
        csv.writer(text).writerows(
            [["id", "right", "abstained"], [ids[0], 1, ""], [ids[1], "wrong", 0], [ids[2], "", 1]]
        )
    rows = [
        {"id": ids[2], "right": None, "abstained": True}, {"id": ids[1], "right": False},
        {"id": ids[0], "right": "right"},
    ]  # fmt: skip
    second.write_text("\n".join(map(json.dumps, rows)))
    expected = dict(zip(ids, ("right", "wrong", "abstain"), strict=True))
    assert read_verdicts(str(first)) == read_verdicts(str(second)) == expected
    one, other = (
        resolve("m", questions, Config(verdicts=str(file)))[2] for file in (first, second)
    )
    assert one == other
    assert one["verdicts"] == verdicts_hash(expected) is not None
    assert resolve("m", questions, Config())[2]["verdicts"] is None
