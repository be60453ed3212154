"""What it saves that a process keeps the memory it has freed: one run with and without, in turns.

    python benchmarks/kept_memory.py [--limit 100] [--repeats 2]

Printed of each: the seconds of answers and states, and the pages that the system had to bring.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

# `main` keeps memory; the same commands without it.
WITHOUT = "from anchorscope.cli import app; app()"
COMMANDS = {"kept": ["-m", "anchorscope"], "given back": ["-c", WITHOUT]}


def main() -> None:
    """Runs each and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    seen: dict[str, list[tuple[float, int]]] = {name: [] for name in COMMANDS}
    for _ in range(given.repeats):
        for name, command in COMMANDS.items():
            seen[name].append(measured(command, given.limit))
    print("| memory | answers and states, s | pages |\n| --- | ---: | ---: |")
    for name, runs in seen.items():
        seconds = ", ".join(f"{s:.1f}" for s, _ in runs)
        print(f"| {name} | {seconds} | {int(median(p for _, p in runs)):,} |")
    kept, back = (median(s for s, _ in seen[name]) for name in COMMANDS)
    print(f"\nKept in {kept / back:.3f} of the time.")


def measured(command: list[str], limit: int) -> tuple[float, int]:
    """Seconds of the stage in which the model reads, and page faults of the run's own process."""
    with tempfile.TemporaryDirectory(prefix="anchorscope-kept-") as folder:
        out = Path(folder) / "run"
        words = ["run", "--limit", str(limit), "--prompt", "text", "--out", str(out)]
        process = subprocess.Popen([sys.executable, *command, *words], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"The run ended with {os.waitstatus_to_exitcode(status)}.")
        stages = json.loads((out / "run.json").read_text(encoding="utf-8"))["stages"]
        return float(stages["answers and states"]["seconds"]), usage.ru_minflt


if __name__ == "__main__":
    main()
