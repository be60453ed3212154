"""What bad input gets: one sentence, exit code 2, nothing half-written."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from kit.rivers import rivers

BAD = [
    (["--model", "./nowhere"], "'./nowhere' is neither a model folder nor a .gguf file."),
    (
        ["--data", "popkwa"],
        "Unknown dataset or file 'popkwa'. Accepted: atlas, atlas-compare, popqa",
    ),
    (["--limit", "-3"], "--limit is '-3'. Accepted: a number of questions, or all."),
    (["--limit", "many"], "--limit is 'many'. Accepted: a number of questions, or all."),
    (["--prompt", "haiku"], "Unknown prompt 'haiku'. Accepted: auto, chat, text."),
    (
        ["--finder", "eyes"],
        "Unknown finder 'eyes'. Accepted: auto, given, rules, model, spacy, all.",
    ),
    (["--layers", "window:0"], "Unknown layers 'window:0'. Accepted: cumulative, single, window:w"),
    (["--device", "abacus"], "Device 'abacus' cannot be used"),
    (
        ["--device", "tensor-parallel"],
        "Accepted: auto, balanced (one model over all devices, by accelerate's device_map), cpu, "
        "cuda, cuda:N, mps, as far as this machine has them; --workers N has each GPU run a copy "
        "of the model.",
    ),
    (["--dtype", "int3"], "Unknown dtype 'int3'. Accepted: auto, float32, bfloat16, float16."),
]


@pytest.mark.parametrize(
    ("words", "said"), BAD, ids=lambda x: " ".join(x) if isinstance(x, list) else ""
)
def test_a_bad_option_is_one_sentence_and_writes_nothing(cli, tmp_path, words, said):
    out = tmp_path / "run"
    code, _, error = cli("run", "--data", "atlas", "--limit", "48", "--out", out, *words)
    assert code == 2
    assert said in error
    assert "Traceback" not in error
    assert not (out / "answers").exists()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("no_answers.csv", "question\nWhat is up?\n", "answer"),
        ("empty.jsonl", "", "empty"),
        ("blank.csv", "question,answer\n,sky\n", "question"),
        ("twice.csv", "id,question,answer\n1,What is up?,sky\n1,What is down?,earth\n", "id"),
        ("picture.png", "PNG", "Accepted"),
    ],
)
def test_a_bad_file_of_questions(cli, tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    code, _, error = cli("run", "--data", tmp_path / name, "--out", tmp_path / "run")
    assert code == 2
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_run(cli, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    code, _, error = cli("run", "--data", "atlas", "--out", tmp_path)
    assert code == 2
    assert "is not a run of anchorscope" in error


def test_an_unwritable_place(cli, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, error = cli("run", "--data", "atlas", "--out", tmp_path / "file" / "run")
    assert code == 2
    assert "is a file, so" in error and "cannot be a folder" in error


def test_too_few_right_answers_are_counted(cli, tmp_path, bundled):
    """The bundled model cannot answer these: the message says how many there are."""
    rows = ["question,answer,subject"]
    rows += [f"What is the secret word of City{n}?,xyzzy{n},City{n}" for n in range(12)]
    (tmp_path / "hard.csv").write_text("\n".join(rows) + "\n")
    words = [
        "--data",
        tmp_path / "hard.csv",
        "--prompt",
        "text",
        "--max-tokens",
        "2",
        "--shots",
        "1",
    ]
    code, _, error = cli("run", *words, "--out", tmp_path / "run")
    assert code == 2
    assert "0 right" in error
    assert "wrong" in error


def test_figure_of_nothing(cli, tmp_path):
    code, _, error = cli("figure", tmp_path / "nowhere", "--out", tmp_path / "f.pdf")
    assert code == 2
    assert "There is no folder" in error
    code, _, error = cli("figure", tmp_path, "--out", tmp_path / "f.bmp")
    assert code == 2
    assert "Unknown figure format '.bmp'. Accepted: .png, .svg, .pdf." in error


@pytest.mark.slow  # half a minute on one slow core, most of it the full pack
def test_doctor_understands_the_bundled_model(cli, bundled):
    code, out, _ = cli("doctor", "--model", "bundled", "--dtype", "float32", "--device", "cpu")
    assert code == 0
    assert out.count("  ok ") == 17
    assert out.strip().endswith("checks passed: this model can be run.")


def test_doctor_prints_each_check(cli, tmp_path):
    model = rivers(tmp_path) / "model"
    code, out, _ = cli("doctor", "--model", model, "--dtype", "float32", "--device", "cpu")
    assert code == 0
    assert out.count("  ok ") == 17
    assert out.strip().endswith("checks passed: this model can be run.")


def test_the_package_is_a_command_too(cli):
    asked = [sys.executable, "-m", "anchorscope", "--version"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert said == cli("--version")[1]


def test_help_and_version(cli):
    assert cli("--version")[1].startswith("anchorscope ")
    for command in ("run", "figure", "doctor"):
        code, out, _ = cli(command, "--help")
        assert code == 0
        assert "--help" in out


_QUIET = """
import sys
{before}
from anchorscope.cli.terminal import quiet_libraries
quiet_libraries()
assert ("datasets" in sys.modules) is {here}
import datasets
assert not datasets.is_progress_bar_enabled()
"""


@pytest.mark.parametrize(("before", "here"), [("", False), ("import datasets", True)])
def test_the_bars_of_a_library_are_off_before_and_after_it_is_imported(before, here):
    given = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_DATASETS")
    }
    told = _QUIET.format(before=before, here=here)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", told],
        env=given,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("later", [False, True])
def test_ctrl_c_says_that_the_same_command_continues(cli, tmp_path, monkeypatch, later):
    """In a command, where typer hears it first, and before there is one."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    place = "anchorscope.pipeline.run.run" if later else "anchorscope.cli.app"
    monkeypatch.setattr(place, interrupted)
    code, out, error = cli("run", "--out", tmp_path / "run")
    assert code == 130
    assert error == "Stopped. The same command continues where it was.\n"
    assert not out
