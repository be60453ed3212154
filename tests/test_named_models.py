"""What a file may not decide: whether a model's code is run, and which model is loaded."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import transformers.dynamic_module_utils
from kit.rivers import collect_here, rivers
from kit.tiny import save_tiny
from test_detect_score import QUESTIONS, make

from anchorscope.config import Config
from anchorscope.detect.detector import Detector
from anchorscope.models import load_model
from anchorscope.run_folder.manifest import info_text

CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

open({seen!r}, "w")

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def questions_at_terminal(monkeypatch) -> list[str]:
    """The questions put to a terminal, each answered with a yes."""
    questions: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text="": questions.append(text) or "y")
    return questions


@pytest.fixture
def with_code(tmp_path: Path, monkeypatch) -> Path:
    """A model's folder with code of its own, which leaves a file `seen` where it is run."""
    modules = str(tmp_path / "modules")  # where transformers copies such code to
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", modules)
    folder = tmp_path / "evil"
    save_tiny(folder)
    (folder / "own.py").write_text(CODE.format(seen=str(tmp_path / "seen")), encoding="utf-8")
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": own}))
    return folder


def study_file(folder: Path, model: Path, *, options: str = "", own: str = "") -> Path:
    file = folder / "study.toml"
    file.write_text(
        f'data = ["atlas"]\n[options]\nlimit = 40\n{options}\n'
        f'[[models]]\nname = "harmless"\nmodel = "{model}"\n{own}\n'
    )
    return file


@pytest.mark.parametrize(
    ("place", "line", "plan"),
    [
        ("options", "trust_remote_code = true", ["--plan"]),
        ("own", "trust-remote-code = true", []),
    ],
)
def test_a_study_file_cannot_have_code_run(
    cli, tmp_path, with_code, questions_at_terminal, plan, place, line
):
    file = study_file(tmp_path, with_code, **{place: line})
    code, _, error = cli("study", file, "--out", tmp_path / "out", *plan)
    assert code == 2
    assert "study.toml sets trust_remote_code" in error and "--trust-remote-code" in error
    assert not questions_at_terminal and not (tmp_path / "seen").exists()


def test_a_study_without_the_option_refuses_a_model_with_code(
    cli, tmp_path, with_code, questions_at_terminal
):
    file = study_file(tmp_path, with_code)
    code, _, error = cli("study", file, "--out", tmp_path / "out", "--plan")
    assert code == 2
    assert "--trust-remote-code" in error and "Traceback" not in error
    assert not questions_at_terminal and not (tmp_path / "seen").exists()


def test_the_option_of_a_study_plans_a_model_with_code_and_asks_nothing(
    cli, tmp_path, with_code, questions_at_terminal
):
    file = study_file(tmp_path, with_code)
    code, out, error = cli("study", file, "--out", tmp_path, "--plan", "--trust-remote-code")
    assert code == 0, error
    assert not questions_at_terminal and (tmp_path / "seen").exists()
    assert f"harmless {with_code} 40" in " ".join(out.split())


def test_run_json_cannot_have_code_run():
    restored = Config.restore({"model": "org/name", "trust_remote_code": True})
    assert restored == Config(model="org/name")


def test_samples_are_drawn_by_the_model_of_the_command_line(cli, tmp_path, with_code, monkeypatch):
    place = rivers(tmp_path)
    folder = collect_here(place, "run", shard=64)
    info = json.loads((folder / "run.json").read_text())
    info["config"] |= {"model": str(with_code), "trust_remote_code": True}
    del info["checksum"]
    (folder / "run.json").write_bytes(info_text(info))
    monkeypatch.chdir(place)
    words = ["--model", "model", "--data", "rivers.jsonl", "--max-tokens", 4, "--device", "cpu",
             "--dtype", "float32", "--shard", 64, "--threads", 1, "--out", "run"]  # fmt: skip
    code, _, error = cli("detect", "collect", *words, "--samples", 2)
    assert code == 0, error
    assert not (tmp_path / "seen").exists()
    assert list((folder / "evidence" / "sampled").glob("*.parquet"))


@pytest.fixture(scope="module")
def deployed(tmp_path_factory) -> Path:
    """A folder with a model in `model/` and a detector for it in `detector/`, which names it."""
    home = tmp_path_factory.mktemp("deployed")
    save_tiny(home / "model")
    model = load_model(str(home / "model"), device="cpu", dtype="float32")
    detector = make(model)
    named = detector.model | {"source": str(home / "model")}
    Detector(**{f: getattr(detector, f) for f in detector.__dataclass_fields__ if f[0] != "_"}
             | {"model": named}).save(home / "detector")  # fmt: skip
    return home


def named_by(home: Path, out: Path, **facts: str) -> Path:
    """The detector of `home` with other facts of its model, under right checksums."""
    detector = Detector.load(home / "detector")
    detector.model.update(facts)
    return detector.save(out)


@pytest.mark.parametrize("command", [["score", "--question", QUESTIONS[0]], ["serve"]])
def test_the_model_that_a_detector_names_is_shown_and_not_loaded(
    cli, tmp_path, deployed, monkeypatch, command
):
    loaded: list[object] = []
    monkeypatch.setattr("anchorscope.models.load.AutoModelForCausalLM", loaded)
    facts = {"source": "org/llama; rm x", "adapter": "org/lora", "revision": "refs/pr/7"}
    folder = named_by(deployed, tmp_path / "d", **facts)
    name, *more = command
    code, _, error = cli("detect", name, folder, *more, "--device", "cpu")
    assert code == 2
    options = "--model 'org/llama; rm x' --revision refs/pr/7 --adapter org/lora"
    assert "names the model 'org/llama; rm x'. A file does not choose" in error
    assert options in error
    assert not loaded


def test_the_options_of_the_refusal_are_the_ones_that_load_it(cli, deployed):
    words = ["detect", "score", deployed / "detector", "--device", "cpu"]
    words += ["--question", QUESTIONS[0], "--answer", "Rome"]
    code, _, error = cli(*words)
    assert code == 2
    confirmed = shlex.split(error.strip().removesuffix(".").split(" add ")[1])
    assert confirmed == ["--model", str(deployed / "model")]
    code, out, error = cli(*words, *confirmed)
    assert code == 0, error
    assert 0 < json.loads(out)["probability"] < 1


def test_an_adapter_beside_a_model_of_ours_is_confirmed_too(cli, tmp_path, deployed):
    folder = named_by(deployed, tmp_path / "d", source="bundled", adapter="org/lora")
    words = ["detect", "score", folder, "--question", QUESTIONS[0], "--device", "cpu"]
    code, _, error = cli(*words)
    assert code == 2
    assert (
        "names the model 'bundled'" in error and "add --model bundled --adapter org/lora" in error
    )


def test_a_model_that_comes_with_us_is_loaded_by_its_name(cli, tmp_path, deployed, bundled):
    folder = named_by(deployed, tmp_path / "d", source="bundled")
    code, _, error = cli("detect", "score", folder, "--question", "Who?", "--device", "cpu")
    assert code == 2
    assert "The detector was made for tiny in float32 (4 blocks" in error  # it was loaded


def test_the_model_that_a_run_names_is_shown_and_not_loaded(cli, tmp_path, monkeypatch):
    from kit.show_fixture import make_run

    run = make_run(tmp_path / "run", n=20, layers=2)
    info = json.loads((run / "run.json").read_text())
    info["model"] |= {"source": "org/llama", "revision": None, "adapter": None}
    info.pop("checksum", None)
    for file in run.glob("run*.json"):
        file.write_bytes(info_text(info))
    code, _, error = cli("app", run, "--port", 0, "--no-open")
    assert code == 2
    assert "names the model 'org/llama'. A file does not choose" in error
    assert "add --model org/llama." in error
