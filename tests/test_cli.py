"""What bad input gets: one sentence, exit code 2, nothing half-written."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from kit.rivers import rivers

import anchorscope
from anchorscope.cli.options import PANELS
from anchorscope.datasets import DATASETS
from anchorscope.models.locate import WEIGHTS


def test_bad_rows_are_skipped_and_what_was_left_out_is_said(cli, tmp_path):
    model = rivers(tmp_path) / "model"
    rows = [f"Where is lake {n}?,a" for n in range(48)]
    rows += [",a", "Where is lake 1?,a", "Where is lake 2?,b", "x" * 600 + ",a"]
    (tmp_path / "q.csv").write_text("\n".join(["question,answer", *rows]) + "\n")
    words = ["--model", model, "--data", tmp_path / "q.csv", "--out", tmp_path / "run",
             "--max-tokens", 2, "--shots", 0, "--device", "cpu", "--evidence", "none"]  # fmt: skip
    code, _, error = cli("run", *words)
    assert code == 2 and "Row 49 of q.csv has an empty question" in error
    code, _, error = cli("run", *words, "--skip-bad-rows")
    assert "q: 48 questions; left out: 1 bad row, 2 ambiguous, 1 duplicate" in error
    assert "a question has 600 characters" in error


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["figure", "quick", "--out", "f.png"], "Did you mean 'quack'?"),
        (["run", "--model", "./lama.gguf"], "Did you mean 'llama.gguf'?"),
        (["run", "--model", "./lama", "--out", "x"], "Did you mean 'llama'?"),
    ],
)
def test_a_mistyped_file_or_folder_is_guessed(cli, tmp_path, monkeypatch, words, meant):
    monkeypatch.chdir(tmp_path)
    for name in ("quack", "llama", "llama.gguf"):
        (tmp_path / name).mkdir()
    code, _, error = cli(*words)
    assert code == 2 and meant in error


def test_what_there_is_by_name_is_listed(cli):
    for command, names in (("datasets", DATASETS), ("models", WEIGHTS)):
        code, out, _ = cli(command)
        first = [line.split()[0] for line in out.splitlines() if line.strip()]
        assert code == 0 and set(names) <= set(first)


def test_options_and_commands_are_in_groups_with_an_example(cli):
    _, out, _ = cli("--help")
    for group in ("Run", "Look at results", "Models and data", "Detectors of wrong answers"):
        assert f"─ {group} ─" in out
    _, out, _ = cli("run", "--help")
    assert "Example: anchorscope run --model" in out.replace("`", "")
    for group in PANELS:
        assert f"─ {group} ─" in out


def test_doctor_prints_each_check(cli, tmp_path):
    model = rivers(tmp_path) / "model"
    code, out, _ = cli("doctor", "--model", model, "--dtype", "float32", "--device", "cpu")
    assert code == 0
    assert out.count("  ok ") == 17
    assert out.strip().endswith("17 checks passed: this model can be run.")


def test_the_package_is_a_command_too(cli):
    command = [sys.executable, "-m", "anchorscope", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == cli("--version")[1] == f"anchorscope {anchorscope.__version__}\n"


def test_the_bars_of_a_library_are_off_before_it_is_imported():
    code = (
        "from anchorscope.cli.terminal import quiet_libraries; quiet_libraries();"
        "import datasets; assert not datasets.is_progress_bar_enabled()"
    )
    env = {name: text for name, text in os.environ.items() if not name.startswith("HF_DATASETS")}
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=env, check=True)


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
