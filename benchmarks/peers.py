"""The same job by anchorscope, by plain transformers twice, by nnsight and by TransformerLens.

    python benchmarks/peers.py [--questions 128] [--repeats 3] [--only anchorscope,nnsight]
        [--python nnsight=PATH --python transformer_lens=PATH] [--json FILE]

The job: answer atlas questions greedily (four worked examples, text prompts, 12 tokens at most,
up to the end of the line) and give the residual stream after every block at the last token of the
answer, clean and under the cumulative knockout of the subject at every layer. Each way runs in
fresh processes, in turn; loading the model and two questions to warm up are not timed. Every
result is compared with that of plain transformers written by an expert.

The expert pads and sorts but computes the worked examples for every question; anchorscope
computes them once. The naive way, a pass for each layer, is measured on `--naive-questions` and
scaled to all of them; its answers and clean states are the expert's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
EXPERT, NAIVE = "transformers_expert", "transformers_naive"
WAYS = ("anchorscope", EXPERT, NAIVE, "nnsight", "transformer_lens")
PARTS = ("generate", "clean", "knockout")


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Everything that the table and the JSON file say."""
    every = folder / "job.json"
    _call(sys.executable, "peers_job.py", "--questions", given.questions, "--out", every)
    from peers_job import Job

    job = Job.load(every)
    few = job.first(min(given.naive_questions, given.questions))
    jobs = {way: few.save(folder / "few.json") if way == NAIVE else every for way in WAYS}
    ways = [way for way in WAYS if way in given.only or way == EXPERT]
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    failed: dict[str, str] = {}
    for repeat in range(given.repeats):
        for way in (way for way in ways if way not in failed):
            out = folder / f"{way}-{repeat}"
            try:
                _call(given.python.get(way, sys.executable), "peers_work.py", way, jobs[way], out)
            except subprocess.CalledProcessError as error:
                failed[way] = _reason(error)
                continue
            runs[way].append(json.loads(out.with_suffix(".json").read_text()))
            print(f"  {repeat + 1} {way} {_short(runs[way][-1]['seconds'])}", flush=True)
    found = {"questions": given.questions, "naive_questions": len(few.prompts)}
    found |= {"with_probe": len(job.asked), "device": job.device, "dtype": job.dtype}
    found |= {"weights_mb": _weights_mb(job), "load": os.getloadavg()[0], "not_measured": failed}
    scale = len(job.rows) / max(1, len(few.rows))
    for kind in ("seconds", "cpu_seconds"):
        found[kind] = _medians({w: r for w, r in runs.items() if r}, kind, scale)
    for way in (way for way in ways if runs[way]):
        facts = {"peak_mb": statistics.median(run["peak_mb"] for run in runs[way])}
        facts |= {"lines": runs[way][0]["lines"]} | _compare(way, runs, folder, job)
        for name, fact in facts.items():
            found.setdefault(name, {})[way] = fact
    return found


def _call(python: str, script: str, *words: object) -> None:
    """Runs a script of this folder; what it says on the way is kept for the error alone."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    command = [python, str(HERE / script), *map(str, words)]
    subprocess.run(command, check=True, env=environment, capture_output=True, text=True)


def _reason(error: subprocess.CalledProcessError) -> str:
    said = [line for line in (error.stderr or "").splitlines() if line.strip()]
    return said[-1].strip() if said else f"it ended with status {error.returncode}"


def _medians(
    runs: dict[str, list[dict[str, Any]]], kind: str, scale: float
) -> dict[str, dict[str, float]]:
    """Median seconds of each part; of the naive way, scaled, with the expert's other parts."""
    found = {
        way: {p: statistics.median(run[kind][p] for run in of) for p in PARTS if p in of[0][kind]}
        for way, of in runs.items()
    }
    if NAIVE in found:
        found[NAIVE] = found[EXPERT] | {"knockout": found[NAIVE]["knockout"] * scale}
    return {way: parts | {"total": sum(parts.values())} for way, parts in found.items()}


def _compare(way: str, runs: dict[str, list], folder: Path, job: Any) -> dict[str, Any]:
    """How far the answers and states are from the expert's, over the questions answered alike."""
    theirs, ours = (np.load(folder / f"{name}-0.npz") for name in (EXPERT, way))
    told = runs[way][0]["answers"] or job.answers
    same = [a == b for a, b in zip(told, runs[EXPERT][0]["answers"], strict=True)]
    absolute, relative = {}, {}
    for name in ours.files:
        rows = [row for row, n in enumerate(job.asked[: len(ours[name])]) if same[n]]
        a, b = ours[name][rows], theirs[name][rows]
        absolute[name] = float(np.abs(a - b).max())
        size = np.abs(b).max(axis=(0, 2), keepdims=True)  # of the layer
        relative[name] = float((np.abs(a - b) / size).max())
    return {
        "max_abs_diff": absolute,
        "max_diff_of_layer": relative,
        "same_answers": sum(same) if way != NAIVE else None,
    }


def _weights_mb(job: Any) -> float:
    width = 2 if "16" in job.dtype else 4
    files = Path(job.folder).glob("*.safetensors")
    config = json.loads((Path(job.folder) / "config.json").read_text())
    stored = 2 if "16" in str(config.get("dtype")) else 4
    return sum(file.stat().st_size for file in files) * width / stored / 2**20


def _short(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items())


def table(found: dict[str, Any]) -> str:
    """The measurements in words and columns."""
    best = found["seconds"].get("anchorscope", {}).get("total")
    head = f"{'':20}" + "".join(f"{p:>10}" for p in (*PARTS, "total", "× ours", "cpu s"))
    rows = [head + f"{'peak MB':>9}{'lines':>6}{'answers':>9}{'Δ clean':>9}{'Δ cut':>9}"]
    for way, parts in found["seconds"].items():
        times = "".join(f"{parts[p]:10.1f}" for p in (*PARTS, "total"))
        ratio = f"{parts['total'] / best:10.2f}" if best else f"{'':10}"
        answers = found["same_answers"][way]
        answers = "as above" if answers is None else f"{answers}/{found['questions']}"
        far = found["max_diff_of_layer"][way]
        rows.append(
            f"{way:20}{times}{ratio}{found['cpu_seconds'][way]['total']:10.1f}"
            f"{found['peak_mb'][way]:9.0f}{found['lines'][way]:6}{answers:>9}"
            f"{_power(far.get('clean')):>9}{_power(far.get('knockout')):>9}"
        )
    rows += [f"{way:20}not measured: {why}" for way, why in found["not_measured"].items()]
    return "\n".join(rows)


def _power(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


def notes(found: dict[str, Any]) -> str:
    return (
        f"{found['questions']} questions, {found['with_probe']} with a probe position; "
        f"{found['dtype']} on {found['device']}; weights {found['weights_mb']:.0f} MB.\n"
        f"Seconds are medians of wall time, cpu s of processor time over all threads.\n"
        f"{NAIVE}: knockout measured on {found['naive_questions']} questions and scaled to all; "
        f"its other parts are {EXPERT}'s.\n"
        f"Δ: largest difference from {EXPERT}, as a share of the layer's largest value, over the "
        f"questions answered alike."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=128)
    parser.add_argument("--naive-questions", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", type=lambda names: names.split(","), default=list(WAYS))
    parser.add_argument("--python", action="append", default=[], metavar="WAY=PATH")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.python = dict(pair.split("=", 1) for pair in given.python)
    for name in {*given.only, *given.python} - {*WAYS}:
        parser.error(f"unknown way {name}; accepted: {', '.join(WAYS)}")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given, Path(folder))
    print(table(found), notes(found), sep="\n\n")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
