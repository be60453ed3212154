"""Eight questions for a tiny random model, and the real command line run on them."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open

import anchorscope
from anchorscope.cli import main
from anchorscope.config import Config
from anchorscope.pipeline.collect import collect as collect_states
from kit.tiny import save_tiny

OPTIONS = ["--model", "model", "--data", "rivers.jsonl", "--max-tokens", "4"]
OPTIONS += ["--device", "cpu", "--dtype", "float32", "--threads", "1"]


def rivers(folder: Path) -> Path:
    """Make a folder with the model and the questions in it."""
    place = folder / "rivers"
    place.mkdir()
    save_tiny(place / "model")
    shutil.copy(Path(__file__).with_name("rivers.jsonl"), place)
    return place


def river_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Questions about so many rivers, as the rows of a file."""
    draw, names = random.Random(seed), set()
    while len(names) < count:
        names.add("".join(draw.choice("bcdfglmnprst") + draw.choice("aeiou") for _ in range(3)))
    return [
        {"id": name, "question": f"Where does the river {name.title()} end?", "answers": ["sea"],
         "subject": name.title()}
        for name in sorted(names)
    ]  # fmt: skip


def half_right(place: Path, count: int = 64, *, short: bool = False) -> Path:
    """Write questions of which every other has the model's own answer as its gold answer.

    With `short`, every fourth holds only subject and property.
    """
    rows = river_rows(count)
    for row in rows[1::4] if short else ():
        row["question"] = f"Where does {row['subject']} end?"
    file = place / "half.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    config = Config(max_tokens=4, dtype="float32", device="cpu", limit=None, prompt="text")
    first = collect_states(str(place / "model"), file, out=place / "first", config=config)
    written = pd.read_parquet(first / "samples.parquet").set_index("question")["answer"]
    for number, row in enumerate(rows):
        own = written[row["question"]]
        # Ten gold answers differ by a letter, so that `verdicts` doubts them.
        row["answers"] = [own] if number % 2 == 0 else [f"{own}x"] if number < 20 else ["sea"]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return file


# The options of the run that tests of finished runs share.
HALF = ("run", "--model", "model", "--data", "half.jsonl", "--max-tokens", "4", "--shard", "24",
        "--resamples", "100", "--fold-seeds", "1", "--folds", "3", "--dtype", "float32",
        "--device", "cpu", "--prompt", "text", "--evidence", "none", "--threads", "1")  # fmt: skip


def main_in(place: Path, *words: str) -> None:
    """Run the command line in this process and this folder; it must succeed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "argv", ["anchorscope", *words])
        with pytest.raises(SystemExit) as stop:
            main()
    assert not stop.value.code, words


def collect(place: Path, *words: str, shard: int = 2) -> subprocess.Popen[str]:
    """Start `anchorscope detect collect` on the river questions."""
    return anchorscope_in(place, "detect", "collect", *OPTIONS, "--shard", str(shard), *words)


def collect_here(place: Path, out: str, *, shard: int = 2, **options: int) -> Path:
    """Collect the river questions in this process, which has its libraries loaded."""
    before = Path.cwd()
    os.chdir(place)
    try:
        config = Config(model="model", data=("rivers.jsonl",), max_tokens=4, device="cpu",
                        dtype="float32", shard=shard, threads=1, **options)  # fmt: skip
        return collect_states(out=out, config=config).absolute()
    finally:
        os.chdir(before)


def anchorscope_in(place: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command line in a process of its own, in this folder."""
    command = [sys.executable, "-c", "from anchorscope.cli import main; main()", *words]
    environment = os.environ | {"PYTHONPATH": str(Path(anchorscope.__file__).parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=place, env=environment, **pipes)


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for a command and return its output; it must end with this exit code."""
    out, error = process.communicate(timeout=600)
    assert process.returncode == code, error
    return out + error


def stored_states(run: Path, intervention: str) -> dict[str, np.ndarray]:
    """States [layer, width] by id, read with safetensors alone."""
    found = {}
    for path in sorted((run / "states" / intervention).glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            ids, states = json.loads(file.metadata()["ids"]), file.get_tensor("states")
        found |= dict(zip(ids, states, strict=True))
    return found


def contents(run: Path) -> dict[str, bytes]:
    """The bytes of every result file of a run, by name."""
    folders = ("answers", "states", "outputs", "evidence", "tables")
    files = [p for name in folders for p in (run / name).rglob("*") if p.is_file()]
    return {str(p.relative_to(run)): p.read_bytes() for p in [*files, run / "samples.parquet"]}


def a_file_of_each_kind(folder: Path, draw: random.Random) -> list[str]:
    """The name of one file for each folder and ending."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        path = file.relative_to(folder)
        depth = 2 if path.parts[0] == "markers" else 1
        top = "/".join(path.parts[:depth]) if len(path.parts) > 1 else path.name
        kinds.setdefault((top, path.suffix), []).append(path.as_posix())
    return [draw.choice(names) for names in kinds.values()]
