"""python -m torture.fuzz: every target in turn; prints inputs tried and tracebacks seen."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything reads it: nothing is asked of the network


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """The counts by target and in all; `failures` holds every traceback."""
    parser = argparse.ArgumentParser(prog="python -m torture.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="inputs in all, about")
    parser.add_argument("--each", type=int, help="inputs for each target, instead of its share")
    parser.add_argument("--only", default="", help="targets whose name begins so; joined by commas")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other inputs")
    parser.add_argument("--out", default="", help="a file for the counts, as JSON")
    asked = parser.parse_args(argv)

    from torture.fuzz.target import run_target
    from torture.fuzz.targets import every_target

    targets = every_target()
    whole = sum(target.share for target in targets)
    outcomes = []
    for target in targets:
        if not target.name.startswith(tuple(asked.only.split(","))):
            continue
        count = asked.each or max(5, round(asked.inputs * target.share / whole))
        done = run_target(target, count, seed=asked.seed)
        outcomes.append(done)
        _say(
            f"{done.target:<24}{done.inputs:>8} inputs, {done.refused:>7} refused, "
            f"{done.seconds:7.1f} s, {len(done.failures)} failures"
        )
        for failure in done.failures:
            _say(failure)
    result = {
        "inputs": sum(done.inputs for done in outcomes),
        "refused": sum(done.refused for done in outcomes),
        "seconds": round(sum(done.seconds for done in outcomes), 1),
        "tracebacks": sum(len(done.failures) for done in outcomes),
        "targets": {done.target: done.inputs for done in outcomes},
        "failures": [text for done in outcomes for text in done.failures],
    }
    _say(f"inputs tried: {result['inputs']}; tracebacks: {result['tracebacks']}")
    if asked.out:
        with open(asked.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    return result


def _say(text: str) -> None:
    sys.stdout.write(text.encode("ascii", "backslashreplace").decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(1 if main()["tracebacks"] else 0)
