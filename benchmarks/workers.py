"""Two workers with one thread each against one process with two, the same shards of the same run.

python benchmarks/workers.py [--limit 400] [--rounds 3] [--dtype float32]

What is timed is the stage "answers and states" of run.json. The second worker loads in it,
so that few questions speak against workers; the whole command is said beside it. The rounds
alternate, so that a busy minute of the machine does not count for one side alone. The states of
both agree to rounding: torch adds up in another order with another number of threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

WAYS = {
    "one process, two threads": ["--threads", "2"],
    "two workers, one thread": ["--workers", "2", "--threads", "1"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            states = []
            for way, words in WAYS.items():
                out = Path(folder) / way.split()[0]
                seconds[way].append(measure(out, words, options))
                states.append(states_of(out))
            check_alike(*states)
        told = ", ".join(f"{way}: {of[-1][0]:.1f} s" for way, of in seconds.items())
        print(f"round {number + 1}: {told}", flush=True)
    report(seconds)


def measure(out: Path, words: list[str], options: argparse.Namespace) -> tuple[float, float]:
    """Seconds of the stage, and of the whole command."""
    command = [sys.executable, "-m", "anchorscope", "detect", "collect", "--data", "atlas"]
    command += ["--limit", str(options.limit), "--dtype", options.dtype, "--device", "cpu"]
    command += ["--prompt", "text", "--shard", "8", "--out", str(out), *words]
    begun = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    whole = time.monotonic() - begun
    info = json.loads((out / "run.json").read_text(encoding="utf-8"))
    return info["stages"]["answers and states"]["seconds"], whole


def states_of(out: Path) -> dict[str, np.ndarray]:
    files = sorted((out / "states" / "clean").glob("*.safetensors"))
    return {path.name: load_file(path)["states"].astype(np.float32) for path in files}


def check_alike(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    """An error where the clean states differ by more than half precision rounds."""
    for name, states in one.items():
        apart = np.linalg.norm(states - two[name]) / np.linalg.norm(states)
        assert apart < 1e-3, f"{name} differs by {apart:.1g} of its length"


def report(seconds: dict[str, list[tuple[float, float]]]) -> None:
    """The median of each way, and how much faster two workers are."""
    stage = {way: statistics.median(of[0] for of in rows) for way, rows in seconds.items()}
    whole = {way: statistics.median(of[1] for of in rows) for way, rows in seconds.items()}
    for way in WAYS:
        print(f"{way}: {stage[way]:.1f} s for answers and states, {whole[way]:.1f} s in all")
    one, two = WAYS
    print(f"two workers are {stage[one] / stage[two]:.2f} times as fast (median of the rounds)")


if __name__ == "__main__":
    main()
