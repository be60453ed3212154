"""A study's file, the check of it, and the plan, against numbers from elsewhere."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from kit.study_fixture import Maker, tiny_study
from kit.tiny import CONFIGS, tiny_lm, tiny_tokenizer

from anchorscope.answers.given_verdicts import read_verdicts, verdicts_hash
from anchorscope.config import Config
from anchorscope.datasets import load_questions
from anchorscope.errors import UserError
from anchorscope.pipeline.request import resolve
from anchorscope.pipeline.study.check import check_study
from anchorscope.pipeline.study.file import read_study, shipped, study_of
from anchorscope.pipeline.study.hardware import hardware, reached
from anchorscope.pipeline.study.known import KNOWN, known_config
from anchorscope.pipeline.study.plan import estimate
from anchorscope.pipeline.study.sizes import Size, size_from
from anchorscope.pipeline.study.tokens import TokenCount, count_tokens

# Weights as the makers state them on the models' pages.
STATED = {
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "Meta-Llama-3-8B": 8_030_261_248,
    "Meta-Llama-3-70B": 70_553_706_496,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-32B": 32_762_123_264,
}
SIZE = Size(blocks=10, width=100, block_weights=10**9, head_weights=10**8, weights=12 * 10**8)
SET = TokenCount(dataset="a", questions=2048, prefix=80, question=20.0, counted=True)
H200 = hardware("h200")


@pytest.mark.parametrize("name", KNOWN)
def test_a_models_size_is_the_one_its_makers_state(name: str) -> None:
    size = size_from(known_config(f"org/{name}-Instruct"))
    assert size.weights == STATED[name]
    shape = KNOWN[name]
    assert (size.blocks, size.width) == (shape["num_hidden_layers"], shape["hidden_size"])
    assert size.head_weights == shape["vocab_size"] * shape["hidden_size"]


def test_the_blocks_weights_are_those_of_a_real_model() -> None:
    lm = tiny_lm("qwen3")
    blocks = sum(p.numel() for name, p in lm.named_parameters() if ".layers." in name)
    assert size_from(CONFIGS["qwen3"]()).block_weights == blocks


def test_operations_are_twice_the_weights_by_the_tokens() -> None:
    """Summed by hand: question, answer, seven passes, the mass of attention, and the head."""
    forecast = estimate(Config(), [SET], H200, size=SIZE, answer=4)
    rows = 24 * (0.65 + 0.81 + 0.65) + (4 + 3) + (4 + 1)
    tokens = 80 + 2048 * (20 + 4 + rows) + 500 * (24 * 1.65 + 4 + 1)
    assert forecast.tokens == pytest.approx(tokens)
    assert forecast.flops == pytest.approx(
        2e9 * (tokens + 2048 * 5) + 2e8 * 2048 * 5  # the answer's tokens and the first one
    )
    assert forecast.passes == 5 * 2048 + 2 * 500
    states = 2048 * 10 * 100 * 2 * 9  # clean, at the question's end, and seven passes
    assert forecast.disk == pytest.approx(states + 2048 * (2 * 10 * 40 + 2000) + 6e6)


def test_more_gpus_shorten_what_they_can() -> None:
    one, four, many = (
        estimate(Config(shard=256), [SET], hardware("h200", gpus), size=SIZE) for gpus in (1, 4, 64)
    )
    states = "answers and states"
    assert four.seconds[states] == pytest.approx(one.seconds[states] / 4)
    assert many.seconds[states] == pytest.approx(one.seconds[states] / 8)  # eight shards
    assert one.seconds["analysis"] == four.seconds["analysis"]
    assert one.gpu_hours < four.gpu_hours < many.gpu_hours
    assert four.gpu_hours == pytest.approx(4 * sum(four.seconds.values()) / 3600)


def test_a_model_larger_than_a_device_takes_several() -> None:
    big = size_from(known_config("Meta-Llama-3-70B"))
    assert estimate(Config(), [SET], hardware("h100"), size=big).devices == 3
    assert estimate(Config(), [SET], H200, size=big).devices == 2


def test_what_was_measured_is_what_is_forecast() -> None:
    """docs/performance.md: whole jobs on one H200, and the share of a product's rate."""
    for name, share in (
        ("Llama-3.2-1B", 0.35), ("Llama-3.2-3B", 0.44), ("Qwen3-8B", 0.53), ("Qwen3-32B", 0.70),
    ):  # fmt: skip
        size = size_from(known_config(name))
        assert reached(size.block_weights, H200) == pytest.approx(share, abs=0.005)
    assert 0.03 <= reached(1e8, H200) < 0.35
    assert reached(1e12, H200) == 0.70


def test_tokens_are_counted_by_the_tokenizer_where_it_is_there() -> None:
    questions = load_questions("atlas", limit=20)
    (counted,) = count_tokens([questions], tiny_tokenizer(), shots=4)  # one token a byte
    turns = [len(f"Q: {q.text}\nA:".encode()) for q in questions]
    assert counted.question == sum(turns) / 20
    assert counted.prefix == sum(
        len(f"Q: {s.question}\nA: {s.answer}\n\n".encode()) for s in questions.shots
    )
    (estimated,) = count_tokens([questions], None, shots=0)
    assert (estimated.counted, estimated.prefix) == (False, 0)


def test_the_shipped_studies_are_what_they_say() -> None:
    assert list(shipped()) == ["paper", "quick", "replication", "seeds"]
    seeds = read_study("seeds")
    assert {p: [m.name for m in models] for p, models in seeds.panels.items()} == {
        "Llama-3.2": ["Llama-3.2-1B", "Llama-3.2-3B"],
        "Qwen3": ["Qwen3-8B", "Qwen3-32B"],
    }
    assert seeds.data == ("popqa", "triviaqa", "hotpotqa", "nq")
    for name in shipped():
        study = read_study(name)
        for model in study.models:
            study.config(model)  # every option is one
    assert len(read_study("paper").models) == 15
    assert read_study("replication").config(read_study("replication").models[0]).limit is None


def test_places_and_options_stand_above_the_file() -> None:
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
        ({"data": ["atlas"], "models": [{"name": "b"}]}, "needs model, a hub id"),
        ({"data": ["atlas"], "models": [{"model": "a/b"}, {"model": "c/b"}]}, "two models named"),
        ({"data": ["atlas"], "models": [{"model": "a/b", "name": "../x"}]}, "cannot be a folder"),
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


def test_disk_memory_and_hours_are_asked_for_first(tmp_path: Path) -> None:
    maker = {"small": Maker("llama")}
    huge = Size(blocks=80, width=10**9, block_weights=10**12, head_weights=1, weights=10**12)
    study = tiny_study(tmp_path, maker, {"small": huge})
    checked = check_study(study, tmp_path / "out", H200, max_hours=0.01)
    said = " ".join(checked.problems)
    assert "GB free, and the run folders need about" in said
    assert "small: its weights take 2000.0 GB, and one device has 141 GB" in said
    assert "--max-hours is 0.01" in said
    study = tiny_study(tmp_path, maker, {"small": SIZE})
    assert check_study(study, tmp_path / "out", H200).problems == []


def test_plan_prints_the_cost_of_each_model(cli, tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text(
        'data = ["atlas"]\n[options]\nlimit = 50\n[[models]]\nmodel = "meta-llama/Llama-3.2-1B"\n'
        '[[models]]\nmodel = "Qwen/Qwen3-8B"\n'
    )
    code, out, _ = cli("study", file, "--plan", "--gpus", 2, "--gpu-kind", "h100")
    assert code == 0
    for words in ("Llama-3.2-1B", "2.47 GB", "all to do", "GPU-hours", "On 2 × h100", "estimated"):
        assert words in out


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,right\nx:1,1\n", "has no verdict on any of the 3 questions"),
        ("id,right\nx:1,maybe\n", "Row 1 of v.csv: 'maybe' is no verdict. Accepted: 1, true or"),
        ("id,right\nx:1,1\nx:1,0\n", "Row 2 of v.csv has the id 'x:1' a second time"),
        ("id,score\nx:1,1\n", "lacks an id or a verdict"),
    ],
)
def test_mistakes_in_verdicts_are_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "v.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=words):
        resolve("m", load_questions("atlas", limit=3), Config(verdicts=str(file)))


def test_a_forecast_has_no_number_that_is_none() -> None:
    forecast = estimate(Config(evidence=("windows",)), [SET], hardware("cpu"), size=SIZE)
    assert all(math.isfinite(value) and value >= 0 for value in forecast.seconds.values())
    assert (
        forecast.passes == 2048 * (5 + 6 + 2) + 2 * 500
    )  # a window of 5 takes 6 rows, a single block 2
