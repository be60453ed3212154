"""A study that is killed goes on with the same command, and ends as one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit.study_fixture import OPTIONS, random_verdicts
from kit.tiny import tiny_lm, tiny_tokenizer

MODELS = ("llama", "qwen3")


def study_file(folder: Path) -> Path:
    """A .toml file with two tiny models in folders of their own."""
    options = {**OPTIONS, "verdicts": str(random_verdicts(folder / "verdicts.csv")), "shard": 16}
    lines = ['title = "Tiny"', 'data = ["atlas", "atlas-compare"]', "[options]"]
    lines += [f"{name} = {value!r}" for name, value in options.items()]
    for name in MODELS:
        tiny_lm(name).save_pretrained(folder / name)
        tiny_tokenizer().save_pretrained(folder / name)
        lines += ["[[models]]", f"model = '{folder / name}'", "panel = 'Tiny'"]
    file = folder / "tiny.toml"
    file.write_text("\n".join(lines))
    return file


def start(file: Path, out: Path) -> subprocess.Popen[str]:
    code = "from anchorscope.cli import main; main()"
    command = [sys.executable, "-c", code, "study", str(file), "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def killed_after(file: Path, out: Path, seen: Path) -> None:
    """Starts the study and kills it when a file is there."""
    process = start(file, out)
    for _ in range(1200):
        if (out / seen).exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    assert process.poll() is None, process.communicate()[0]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def finished(file: Path, out: Path) -> None:
    process = start(file, out)
    said = process.communicate()[0]
    assert process.returncode == 0, said
    assert f"Study: {out / 'study.html'}" in said


@pytest.mark.slow
def test_a_killed_study_ends_as_one_that_was_not(tmp_path: Path) -> None:
    file, whole, broken = study_file(tmp_path), tmp_path / "whole", tmp_path / "broken"
    finished(file, whole)
    killed_after(file, broken, Path("llama") / "answers" / "00003.parquet")
    killed_after(file, broken, Path("qwen3") / "answers" / "00002.parquet")
    finished(file, broken)
    names = ["study.csv", "claims.csv"]
    names += [
        str(table.relative_to(whole))
        for name in MODELS
        for table in sorted((whole / name / "tables").iterdir())
    ]
    assert len(names) > 12
    for name in names:
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name
