"""Compare anchorscope's speed with plain transformers, nnsight and TransformerLens.

    python benchmarks/peers.py [--questions 128] [--repeats 3] [--only anchorscope,nnsight]
        [--model FOLDER]
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
from peers_job import Job

HERE = Path(__file__).parent
EXPERT, NAIVE = "transformers_expert", "transformers_naive"
WAYS = ("anchorscope", EXPERT, NAIVE, "nnsight", "transformer_lens")
PARTS = ("generate", "clean", "knockout")
MEMORY = ("loaded_mb", "peak_mb")


class Bench:
    """Run the job in every way, and collect the measurements."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self.given, self.folder = given, folder
        every = folder / "job.json"
        options = ("--questions", given.questions, "--model", given.model)
        _call(sys.executable, "peers_job.py", *options, "--out", every)
        self.job = Job.load(every)
        self.few = self.job.first(min(given.naive_questions, given.questions))
        few = self.few.save(folder / "few.json")
        self.files = {way: few if way == NAIVE else every for way in WAYS}
        self.runs: dict[str, list[dict[str, Any]]] = {}
        self.failed: dict[str, str] = {}

    def repeat(self) -> None:
        """Run every way once more, each in a new process."""
        ways = [way for way in WAYS if way in self.given.only or way == EXPERT]
        for way in (way for way in ways if way not in self.failed):
            runs = self.runs.get(way, [])
            out = self.folder / f"{way}-{len(runs)}"
            python = self.given.python.get(way, sys.executable)
            try:
                _call(python, "peers_work.py", way, self.files[way], out)
            except Failed as error:
                if way == EXPERT:
                    raise  # there is nothing to compare with
                self.failed[way] = str(error)
                continue
            self.runs[way] = [*runs, json.loads(out.with_suffix(".json").read_text())]
            parts = self.runs[way][-1]["seconds"].items()
            times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts)
            print(f"  {len(self.runs[way])} {way}: {times}", flush=True)

    def found(self) -> dict[str, Any]:
        """Collect the measurements for the table and the JSON file."""
        job = self.job
        found: dict[str, Any] = {
            "questions": len(job.prompts),
            "with_probe": len(job.asked),
            "naive_questions": len(self.few.prompts),
            "repeats": len(self.runs[EXPERT]),
            "device": job.device,
            "dtype": job.dtype,
            "weights_mb": _weights_mb(job),
            "load_average": os.getloadavg()[0],
            "not_measured": self.failed,
        }
        scale = len(job.rows) / max(1, len(self.few.rows))
        for kind in ("seconds", "cpu_seconds"):
            found[kind] = _medians(self.runs, kind, scale)
        for way, runs in self.runs.items():
            facts = {name: statistics.median(run[name] for run in runs) for name in MEMORY}
            facts |= {"lines": runs[0]["lines"]} | self._compare(way)
            for name, fact in facts.items():
                found.setdefault(name, {})[way] = fact
        return found

    def _compare(self, way: str) -> dict[str, Any]:
        """Compare answers and states with the expert's, over the questions with equal answers."""
        theirs, ours = (np.load(self.folder / f"{name}-0.npz") for name in (EXPERT, way))
        answers = self.runs[way][0]["answers"] or self.job.answers
        same = [a == b for a, b in zip(answers, self.runs[EXPERT][0]["answers"], strict=True)]
        absolute, relative = {}, {}
        for name in ours.files:
            rows = [row for row, n in enumerate(self.job.asked[: len(ours[name])]) if same[n]]
            far = np.abs(ours[name][rows] - theirs[name][rows])
            absolute[name] = float(far.max())
            size = np.abs(theirs[name][rows]).max(axis=(0, 2), keepdims=True)
            relative[name] = float((far / size).max())
        alike = None if way == NAIVE else sum(same)
        return {"max_abs_diff": absolute, "max_diff_of_layer": relative, "same_answers": alike}


class Failed(Exception):
    """Raised where a process fails, with the last line of its errors."""


def _call(python: str, script: str, *words: object) -> None:
    """Run a script of this folder; raise `Failed` with the last line of its output on an error."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    command = [python, str(HERE / script), *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        errors = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise Failed(errors[-1] if errors else f"it ended with status {done.returncode}")


def _medians(
    runs: dict[str, list[dict[str, Any]]], kind: str, scale: float
) -> dict[str, dict[str, float]]:
    """Median seconds of each part; the naive way's knockout is scaled, its rest the expert's."""
    found = {
        way: {
            part: statistics.median(run[kind][part] for run in own)
            for part in PARTS
            if part in own[0][kind]
        }
        for way, own in runs.items()
    }
    if NAIVE in found:
        found[NAIVE] = found[EXPERT] | {"knockout": found[NAIVE]["knockout"] * scale}
    return {way: parts | {"total": sum(parts.values(), 0.0)} for way, parts in found.items()}


def _weights_mb(job: Any) -> float:
    width = 2 if "16" in job.dtype else 4
    files = Path(job.folder).glob("*.safetensors")
    config = json.loads((Path(job.folder) / "config.json").read_text())
    stored = 2 if "16" in str(config.get("dtype")) else 4
    return sum(file.stat().st_size for file in files) * width / stored / 2**20


def table(found: dict[str, Any]) -> str:
    """Format the measurements as a table, one line for each way."""
    unknown = {"total": float("nan")}
    wall, cpu = (found[k].get("anchorscope", unknown)["total"] for k in ("seconds", "cpu_seconds"))
    head = (
        "",
        *PARTS,
        "total",
        "× ours",
        "cpu s",
        "× ours",
        "peak MB",
        "loaded",
        "lines",
        "answers",
    )
    rows: list[tuple[str, ...]] = [(*head, "Δ clean", "Δ cut")]
    for way, parts in found["seconds"].items():
        alike, far = found["same_answers"][way], found["max_diff_of_layer"][way]
        rows.append(
            (
                way,
                *(f"{parts[part]:.1f}" for part in (*PARTS, "total")),
                f"{parts['total'] / wall:.2f}",
                f"{found['cpu_seconds'][way]['total']:.1f}",
                f"{found['cpu_seconds'][way]['total'] / cpu:.2f}",
                f"{found['peak_mb'][way]:.0f}",
                f"{found['loaded_mb'][way]:.0f}",
                f"{found['lines'][way]}",
                "–" if alike is None else f"{alike}/{found['questions']}",
                *(f"{far[part]:.1e}" if part in far else "–" for part in ("clean", "knockout")),
            )
        )
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    lines = ["".join(map(str.rjust, row, widths)) for row in rows]
    return "\n".join(
        lines + [f"{w}: not measured: {why}" for w, why in found["not_measured"].items()]
    )


def notes(found: dict[str, Any]) -> str:
    """Explain the columns of the table."""
    lines = [
        f"{found['questions']} questions, {found['with_probe']} with a probe position; "
        f"{found['dtype']} on {found['device']}; weights {found['weights_mb']:.0f} MB; "
        f"load average {found['load_average']:.1f}.",
        f"Wall seconds, medians of {found['repeats']}; cpu s: processor seconds of all threads; "
        "loaded: MB resident before the job.",
        f"Δ: largest difference from {EXPERT}, as a share of the layer's largest value, over the "
        "questions answered alike.",
    ]
    if NAIVE in found["seconds"]:
        lines.append(
            f"{NAIVE}: the knockout was measured on {found['naive_questions']} questions and "
            f"scaled linearly to all; its other parts are {EXPERT}'s."
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="bundled")
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
        bench = Bench(given, Path(folder))
        for _ in range(given.repeats):
            bench.repeat()
            found = bench.found()
            print(table(found), notes(found), "", sep="\n\n", flush=True)
            if given.json:
                given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
