"""Measure memory and disk of runs with many more questions than probes learn from.

    PYTHONPATH=src:tests python benchmarks/many_questions.py [COUNT ...] [--learn-from N] [--more M]

A random model of 2 blocks of width 24 answers made-up questions, each run in a new process. Prints
for each count: seconds of the whole run and of the remaining questions, the largest resident memory
of the process (and of all processes that it starts, counting shared pages once for each), and the
bytes of the run folder without and with what the remaining questions take.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from kit.tiny import CONFIGS, tiny_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig

SMALLER = {"num_hidden_layers": 2, "hidden_size": 24, "intermediate_size": 32,
           "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
OPTIONS = ("--limit", "all", "--shots", "0", "--max-tokens", "2", "--prompt", "text", "--folds",
           "3", "--fold-seeds", "1", "--resamples", "100", "--evidence", "none", "--device", "cpu",
           "--dtype", "float32", "--threads", "1", "--shard", "512")  # fmt: skip
ANSWERS = ("uu", "u")  # what this model says to about half of the questions
MB = 1e6


def main() -> None:
    """Run each count of questions and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("counts", nargs="*", type=int, default=[30_000, 300_000])
    parser.add_argument("--learn-from", type=int, default=5_000)
    parser.add_argument("--more", default="", help="options of anchorscope run: '--workers 2'")
    asked = parser.parse_args()
    print(
        "| questions | s | s remaining | MB process | MB all | MB disk | B a remaining question |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory(prefix="anchorscope-many-") as name:
        folder = Path(name)
        save_model(folder / "model")
        for count in asked.counts:
            (folder / f"q{count}.jsonl").write_text("\n".join(rows(count)), encoding="utf-8")
            options = ("--learn-from", str(asked.learn_from), *OPTIONS, *asked.more.split())
            print(measure(folder, count, count - asked.learn_from, options), flush=True)


def save_model(folder: Path) -> None:
    """Save the random model and a tokenizer of bytes."""
    config = CONFIGS["llama"]()
    assert isinstance(config, LlamaConfig)
    config.update(SMALLER)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def rows(count: int) -> list[str]:
    """Questions about so many made-up rivers, as lines of JSON."""
    syllables = ["".join(pair) for pair in itertools.product("bcdfglmnprst", "aeiou")]
    names = map("".join, itertools.islice(itertools.product(syllables, repeat=4), count))
    return [
        json.dumps({"id": name, "question": f"Where is {name.title()}?", "answers": ANSWERS,
                    "subject": name.title()})
        for name in names
    ]  # fmt: skip


def measure(folder: Path, count: int, remaining: int, options: tuple[str, ...]) -> str:
    """Run one count of questions; return its row of the table."""
    out, begun, own, all_of_them = folder / f"run{count}", time.perf_counter(), 0, 0
    command = [sys.executable, "-m", "anchorscope", "run", "--model", str(folder / "model"),
               "--data", str(folder / f"q{count}.jsonl"), "--out", str(out), *options]  # fmt: skip
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        root = psutil.Process(process.pid)
        while process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                sizes = [p.memory_info().rss for p in (root, *root.children(recursive=True))]
                own, all_of_them = max(own, sizes[0]), max(all_of_them, sum(sizes))
            time.sleep(0.2)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{(folder / 'log').read_text()[-2000:]}")
    seconds = time.perf_counter() - begun
    info = json.loads((out / "run.json").read_text(encoding="utf-8"))
    sizes = {p.relative_to(out): p.stat().st_size for p in out.rglob("*") if p.is_file()}
    further = sum(size for file, size in sizes.items() if "remaining" in file.parts)
    numbers = (
        f"{count:,}",
        f"{seconds:.0f}",
        f"{info['stages'].get('remaining questions', {}).get('seconds', 0):.0f}",
        f"{own / MB:.0f}",
        f"{all_of_them / MB:.0f}",
        f"{(sum(sizes.values()) - further) / MB:.1f} + {further / MB:.1f}",
        f"{further / max(1, remaining):.0f}",
    )
    return f"| {' | '.join(numbers)} |"


if __name__ == "__main__":
    main()
