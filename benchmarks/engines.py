"""Compare the two engines on one model: the same run by transformers and by vLLM.

    python benchmarks/engines.py --model MODEL --data popqa,nq --limit 500 --out runs/engines

Three runs: by transformers, by transformers in smaller batches, and by vLLM. The second shows how
far rounding alone moves states. Prints the answers that agree, the distances of states where they
agree, findings and decisions, and the seconds of each run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

import anchorscope as anc
from anchorscope.run_folder.states import passes_in, shards_of

RUNS = {
    "transformers": [],
    "smaller batches": ["--batch-tokens", "4096"],
    "vllm": ["--engine", "vllm"],
}


def make_run(name: str, out: Path, options: list[str]) -> float:
    """Make one run by the command line; return its seconds."""
    command = [sys.executable, "-m", "anchorscope", "run", *options, *RUNS[name], "--out", str(out)]
    begun = time.monotonic()
    subprocess.run(command, check=True)
    return time.monotonic() - begun


def states_of(run: Path, name: str) -> dict[str, np.ndarray]:
    """States [layer, width] under a pass, by question id."""
    found: dict[str, np.ndarray] = {}
    for shard in shards_of(run, name):
        found |= dict(zip(shard.ids, shard.states().astype(np.float32), strict=True))
    return found


def answers_of(run: Path) -> dict[str, tuple[int, ...]]:
    frame = pd.concat(map(pd.read_parquet, sorted((run / "answers").glob("*.parquet"))))
    return {id: tuple(ids) for id, ids in zip(frame["id"], frame["token_ids"], strict=True)}


def compare(one: Path, other: Path, same: set[str]) -> dict[str, tuple[float, float]]:
    """Distance of states under each pass, a share of their norm: median and 99th percentile."""
    found = {}
    for name in passes_in(one):
        left, right = states_of(one, name), states_of(other, name)
        ids = sorted(same & left.keys() & right.keys())
        a, b = (np.stack([states[id] for id in ids]) for states in (left, right))
        far = np.linalg.norm(a - b, axis=2) / np.linalg.norm(a, axis=2)
        found[name] = (float(np.median(far)), float(np.quantile(far, 0.99)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", default="atlas,atlas-compare")
    parser.add_argument("--limit", default="500")
    parser.add_argument("--prompt", default="text")
    parser.add_argument("--out", type=Path, default=Path("runs/engines"))
    given = parser.parse_args()
    options = [word for name in ("model", "data", "limit", "prompt")
               for word in (f"--{name}", getattr(given, name))]  # fmt: skip
    folders = {name: given.out / name.replace(" ", "-") for name in RUNS}
    seconds = {name: make_run(name, folder, options) for name, folder in folders.items()}
    first = answers_of(folders["transformers"])
    rows, findings = [], {}
    for name, folder in folders.items():
        run = anc.RunView.open(folder)
        findings[name] = run.findings["finding"].tolist()
        decisions = run.claims[["strict_decision", "paper_decision"]].astype(str)
        findings[f"{name}: decisions"] = decisions.to_numpy().ravel().tolist()
        own = answers_of(folder)
        same = {id for id in first if own.get(id) == first[id]}
        for pass_name, (median, high) in compare(folders["transformers"], folder, same).items():
            rows.append((name, pass_name, median, high))
        print(f"{name}: {seconds[name]:.1f} s; {len(same) / len(first):.1%} of answers as first")
    table = pd.DataFrame(rows, columns=["run", "pass", "median", "p99"])
    print(table.pivot(index="pass", columns="run", values=["median", "p99"]).round(5).to_string())
    for name, found in findings.items():
        if ":" not in name:
            print(name, found)
    alike = findings["transformers: decisions"] == findings["vllm: decisions"]
    print("decisions of claims alike:", alike)


if __name__ == "__main__":
    main()
