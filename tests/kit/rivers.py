"""Eight questions for a tiny random model, and the real command line over them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import anchorscope
from kit.tiny import tiny_lm, tiny_tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "format-1"
OPTIONS = ["--model", "model", "--data", "rivers.jsonl", "--max-tokens", "4"]
OPTIONS += ["--device", "cpu", "--dtype", "float32"]


def rivers(folder: Path) -> Path:
    """A folder with the model and the questions in it, as the golden run had them."""
    place = folder / "rivers"
    place.mkdir()
    tiny_lm("llama").save_pretrained(place / "model")
    tiny_tokenizer().save_pretrained(place / "model")
    shutil.copy(GOLDEN / "rivers.jsonl", place)
    return place


def collect(place: Path, *words: str, shard: int = 2) -> subprocess.Popen[str]:
    """`anchorscope detect collect` on the rivers, in a process of its own."""
    main = [sys.executable, "-c", "from anchorscope.cli import main; main()"]
    command = [*main, "detect", "collect", *OPTIONS, "--shard", str(shard), *words]
    environment = os.environ | {"PYTHONPATH": str(Path(anchorscope.__file__).parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=place, env=environment, **pipes)


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """What the command said; it must end with this exit code."""
    out, error = process.communicate(timeout=300)
    assert process.returncode == code, error
    return out + error


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a run that its results are made of, by name."""
    folders = ("answers", "states", "evidence", "tables")
    files = [p for name in folders for p in (run / name).rglob("*") if p.is_file()]
    return {str(p.relative_to(run)): p.read_bytes() for p in [*files, run / "samples.parquet"]}
