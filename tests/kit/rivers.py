"""Eight questions for a tiny random model, and the real command line over them."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import safe_open

import anchorscope
from anchorscope.config import Config
from anchorscope.pipeline.collect import collect as collect_states
from anchorscope.pipeline.run import run as run_whole
from kit.tiny import tiny_lm, tiny_tokenizer

OPTIONS = ["--model", "model", "--data", "rivers.jsonl", "--max-tokens", "4"]
OPTIONS += ["--device", "cpu", "--dtype", "float32", "--threads", "1"]


def rivers(folder: Path) -> Path:
    """A folder with the model and the questions in it."""
    place = folder / "rivers"
    place.mkdir()
    tiny_lm("llama").save_pretrained(place / "model")
    tiny_tokenizer().save_pretrained(place / "model")
    shutil.copy(Path(__file__).with_name("rivers.jsonl"), place)
    return place


def half_right(place: Path) -> Path:
    """Sixty-four questions, of which every other has the model's own answer for its gold one."""
    draw, names = random.Random(0), set()
    while len(names) < 64:
        names.add("".join(draw.choice("bcdfglmnprst") + draw.choice("aeiou") for _ in range(3)))
    rows = [
        {"id": name, "question": f"Where does the river {name.title()} end?", "answers": ["sea"],
         "subject": name.title()}
        for name in sorted(names)
    ]  # fmt: skip
    file = place / "half.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    config = Config(max_tokens=4, dtype="float32", device="cpu", limit=None)
    first = collect_states(str(place / "model"), file, out=place / "first", config=config)
    written = pd.read_parquet(first / "samples.parquet").set_index("question")["answer"]
    for row in rows[::2]:
        row["answers"] = [written[row["question"]]]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return file


def run(place: Path, *words: str) -> subprocess.Popen[str]:
    """`anchorscope run` with every piece of evidence on the half-right rivers."""
    options = ["--model", "model", "--data", "half.jsonl", "--max-tokens", "4", "--shard", "8"]
    options += ["--resamples", "100", "--fold-seeds", "1", "--dtype", "float32"]
    options += ["--device", "cpu", "--evidence", "all", "--ablate", "spans,where"]
    options += ["--threads", "1"]  # in every way of spreading: sums depend on their number
    return anchorscope_in(place, "run", *options, *words)


def collect(place: Path, *words: str, shard: int = 2) -> subprocess.Popen[str]:
    """`anchorscope detect collect` on the rivers."""
    return anchorscope_in(place, "detect", "collect", *OPTIONS, "--shard", str(shard), *words)


def collect_here(place: Path, out: str, *, shard: int = 2, **options: int) -> Path:
    """The same in this process, which has its libraries loaded."""
    before = Path.cwd()
    os.chdir(place)
    try:
        config = Config(model="model", data=("rivers.jsonl",), max_tokens=4, device="cpu",
                        dtype="float32", shard=shard, threads=1, **options)  # fmt: skip
        return collect_states(out=out, config=config).absolute()
    finally:
        os.chdir(before)


def run_here(place: Path, out: str, **options: Any) -> Path:
    """A finished `run` with tables, figures and a report, in this process; no further evidence.

    Every other of its sixty-four questions is given the verdict "right".
    """
    ids = [f"{n:02d}" for n in range(64)]
    questions = [{"id": n, "question": f"Where does the river R{n} end?", "answers": ["sea"],
              "subject": f"R{n}"} for n in ids]  # fmt: skip
    verdicts = [{"id": f"asked:all:{n}", "right": int(n) % 2} for n in ids]
    for name, rows in (("asked", questions), ("verdicts", verdicts)):
        (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    config = Config(model="model", data=("asked.jsonl",), verdicts="verdicts.jsonl", max_tokens=4,
                    device="cpu", dtype="float32", prompt="text", shard=32, threads=1, folds=3,
                    fold_seeds=1, resamples=100, evidence=())  # fmt: skip
    before = Path.cwd()
    os.chdir(place)
    try:
        return run_whole(out=out, config=replace(config, **options)).path.absolute()
    finally:
        os.chdir(before)


def anchorscope_in(place: Path, *words: str) -> subprocess.Popen[str]:
    """The command line in a process of its own, started in this folder."""
    command = [sys.executable, "-c", "from anchorscope.cli import main; main()", *words]
    environment = os.environ | {"PYTHONPATH": str(Path(anchorscope.__file__).parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=place, env=environment, **pipes)


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """What the command said; it must end with this exit code."""
    out, error = process.communicate(timeout=600)
    assert process.returncode == code, error
    return out + error


def stored_states(run: Path, intervention: str) -> dict[str, np.ndarray]:
    """States [layer, width] by id, by nothing but safetensors."""
    found = {}
    for path in sorted((run / "states" / intervention).glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            ids, states = json.loads(file.metadata()["ids"]), file.get_tensor("states")
        found |= dict(zip(ids, states, strict=True))
    return found


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a run that its results are made of, by name."""
    folders = ("answers", "states", "outputs", "evidence", "tables")
    files = [p for name in folders for p in (run / name).rglob("*") if p.is_file()]
    return {str(p.relative_to(run)): p.read_bytes() for p in [*files, run / "samples.parquet"]}
