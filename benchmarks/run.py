"""Time every stage of a real run, started by the command line in a new process.

    python benchmarks/run.py [--out FOLDER] [--like RUN] [-- OPTIONS OF anchorscope run]

For example `python benchmarks/run.py -- --limit 400`. `--like` takes the options of a finished run.
Prints a table: the seconds of each stage from run.json, the time before the run folder exists
(Python, imports, questions), the time between and after the stages, and the share of the stages in
which the model reads and writes. A stage counts the seconds in which the run did nothing else, so
that they add up; work in parallel with the model's reading, on a GPU, has a column of its own.
Processor seconds are those of the process and of all it started.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from anchorscope.config import Config

# Stages in which the model answers and is read; judging and saving meanwhile count with them.
MODEL = (
    "answers and states", "remaining questions", "further passes", "evidence", "asked again",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The times of one run: wall, processor, start (until its folder exists) and stages."""

    wall: float
    processor: float
    start: float
    stages: dict[str, float]
    beside: dict[str, float]  # seconds of the stages while the model read
    about: str

    @property
    def between(self) -> float:
        return self.wall - self.start - sum(self.stages.values())

    @property
    def model(self) -> float:
        return sum(self.stages.get(name, 0.0) for name in MODEL)


def main() -> None:
    """Time a run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where the run stays; otherwise it is deleted")
    parser.add_argument("--like", type=Path, help="a finished run whose options are taken")
    parser.add_argument("options", nargs="*", help="of anchorscope run, after --")
    asked = parser.parse_args()
    options = [*(_options_of(asked.like) if asked.like else []), *asked.options]
    with tempfile.TemporaryDirectory(prefix="anchorscope-run-") as folder:
        print(table(timed(asked.out or Path(folder) / "run", options), options))


def timed(out: Path, options: list[str]) -> Timed:
    """Time one run in a new process, into a folder that must not exist yet."""
    if out.exists():
        raise SystemExit(f"{out} is there already; a run in it would only be continued.")
    command = [sys.executable, "-m", "anchorscope", "run", *options, "--out", str(out)]
    before, begun, start = _processor(), time.perf_counter(), None
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            if start is None and (out / "run.json").exists():
                start = time.perf_counter() - begun
            time.sleep(0.02)
    wall = time.perf_counter() - begun
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}.")
    info = json.loads((out / "run.json").read_text(encoding="utf-8"))
    asked = " + ".join(f"{of['questions']} {of['name']}" for of in info["datasets"])
    return Timed(
        wall=wall,
        processor=_processor() - before,
        start=wall if start is None else start,
        stages={name: float(of["seconds"]) for name, of in info["stages"].items()},
        beside={name: float(of.get("beside", 0)) for name, of in info["stages"].items()},
        about=f"{info['model']['name']} on {info['model'].get('device')}, {asked}",
    )


def table(run: Timed, options: list[str]) -> str:
    """Format the times of a run as a Markdown table."""
    rows = {"start: Python, imports, questions": run.start, **run.stages,
            "between and after the stages": run.between}  # fmt: skip
    lines = [f"`anchorscope run {' '.join(options)}`: {run.about}", "",
             "| stage | seconds | share | beside the reading |",
             "| --- | ---: | ---: | ---: |"]  # fmt: skip
    for name, s in rows.items():
        beside = f"{run.beside[name]:.1f}" if run.beside.get(name) else ""
        lines.append(f"| {name} | {s:.1f} | {s / run.wall:.0%} | {beside} |")
    lines += [f"| **whole run** | {run.wall:.1f} | | |", "",
              f"Model's passes: {run.model:.1f} s, {run.model / run.wall:.0%} of the wall time. "
              f"Processor: {run.processor:.1f} s."]  # fmt: skip
    return "\n".join(lines)


def _options_of(run: Path) -> list[str]:
    """Convert a finished run's config to command-line options."""
    config = Config.restore(json.loads((run / "run.json").read_text(encoding="utf-8"))["config"])
    changed = {n: v for n, v in asdict(config).items() if v != getattr(Config, n)}
    options: list[str] = []
    for name, value in changed.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        text = "all" if name == "limit" and value is None else text
        options += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    return options


def _processor() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


if __name__ == "__main__":
    main()
