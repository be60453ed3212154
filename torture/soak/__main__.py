"""python -m torture.soak: memory over many questions, runs, samples and draws."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """The figures of each part that was asked for."""
    parser = argparse.ArgumentParser(prog="python -m torture.soak", description=__doc__)
    parser.add_argument(
        "--questions", type=int, default=10_000, help="of one collected run; 0: none"
    )
    parser.add_argument("--runs", type=int, default=50, help="one after the other; 0: none")
    parser.add_argument("--samples", type=int, default=100_000, help="of own states; 0: none")
    parser.add_argument("--draws", type=int, default=100_000, help="samples drawn from; 0: none")
    parser.add_argument("--out", default="", help="a file for the figures, as JSON")
    asked = parser.parse_args(argv)

    from torture.soak.work import many_draws, many_questions, many_runs, many_samples

    figures: dict[str, Any] = {}
    for name, count, part in (
        ("questions", asked.questions, many_questions),
        ("runs", asked.runs, many_runs),
        ("samples", asked.samples, many_samples),
        ("draws", asked.draws, many_draws),
    ):
        if count:
            with tempfile.TemporaryDirectory(prefix="soak-") as folder:
                figures[name] = part(Path(folder), count)
            sys.stdout.write(f"{name}: {json.dumps(figures[name])}\n")
            sys.stdout.flush()
    if asked.out:
        Path(asked.out).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return figures


if __name__ == "__main__":
    main()
