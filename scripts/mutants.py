"""Mutation testing: put known faults back, one at a time, and check that the named tests fail.

    python scripts/mutants.py [NAME ...] [--table scripts/mutants.toml] [--workers 2] [--tests-pass]

Each entry of the table names a fault: the file, a piece of its text (which occurs there exactly
once), the text that takes its place, and the tests that must notice. The tests run against a copy
of src/ in a temporary folder; the checkout is not touched. Exit code 1 where a fault survives,
where its old text is not found exactly once, or where the tests fail without any fault.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")
LONGEST = 900  # seconds for the tests of one mutant
ALL_PASSED, SOME_FAILED = 0, 1  # exit codes of pytest; with others the tests did not run


@dataclass(frozen=True)
class Mutant:
    """A fault and the tests that must notice it."""

    name: str
    file: str  # from the root of the checkout, under src/
    old: str
    new: str
    tests: tuple[str, ...]  # node ids of pytest

    def stale(self, root: Path) -> str:
        """The reason why the fault cannot be put back; empty where it can."""
        file = root / self.file
        count = file.read_text(encoding="utf-8").count(self.old) if file.is_file() else 0
        return "" if count == 1 else f"its old text occurs {count} times in {self.file}"


@dataclass(frozen=True)
class Outcome:
    """The result of one mutant, and whether it is as required."""

    mutant: Mutant
    fine: bool
    result: str
    seconds: float = 0.0


def read_table(file: Path) -> list[Mutant]:
    """Read the mutants of a table; their names must differ."""
    entries = tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]
    mutants = [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    assert len({mutant.name for mutant in mutants}) == len(mutants), "two mutants have one name"
    return mutants


def run_tests(root: Path, source: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run these tests on the package under `source`; return pytest's exit code and output."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "slow or not slow", *tests]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.setdefault("OMP_NUM_THREADS", "1")
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=LONGEST
    )
    return done.returncode, done.stdout + done.stderr


def try_mutant(root: Path, mutant: Mutant) -> Outcome:
    """Run the tests of a mutant against a copy of the source in which the fault is back."""
    if reason := mutant.stale(root):
        return Outcome(mutant, False, f"STALE: {reason}")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as work:
        source = copied_source(root, Path(work))
        file = source.parent / mutant.file
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            code, output = run_tests(root, source, mutant.tests)
        except subprocess.TimeoutExpired:
            return Outcome(mutant, False, f"NO END: its tests took more than {LONGEST} s")
    seconds = time.monotonic() - begun
    if code == SOME_FAILED:
        return Outcome(mutant, True, "caught", seconds)
    if code == ALL_PASSED:
        return Outcome(mutant, False, "SURVIVED", seconds)
    return Outcome(mutant, False, f"NOT RUN: pytest ended with {code}\n{output[-2000:]}", seconds)


def copied_source(root: Path, work: Path) -> Path:
    """Copy src/ to `work` with its compiled files, which stay valid as times are copied too."""
    return Path(shutil.copytree(root / "src", work / "src"))


def check_without_fault(root: Path, mutants: Sequence[Mutant]) -> str:
    """Run all named tests on the unchanged source; return pytest's output if they fail, else ""."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    with tempfile.TemporaryDirectory(prefix="mutant-") as work:
        code, output = run_tests(root, copied_source(root, Path(work)), tests)
    return "" if code == ALL_PASSED else output


def main(words: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Try the mutants; exit code 0 where every one is caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="mutants to try; all without a name")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tests-pass", action="store_true", help="the tests were run just before")
    options = parser.parse_args(words)
    mutants = read_table(options.table)
    if unknown := set(options.names) - {mutant.name for mutant in mutants}:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in mutants if not options.names or mutant.name in options.names]
    with ThreadPoolExecutor(options.workers) as pool:
        check = (lambda *_: "") if options.tests_pass else check_without_fault
        sound = pool.submit(check, root, mutants)
        outcomes = []
        for outcome in pool.map(lambda mutant: try_mutant(root, mutant), mutants):
            print(
                f"{outcome.mutant.name:40} {outcome.seconds:5.0f} s  {outcome.result}", flush=True
            )
            outcomes.append(outcome)
        if failures := sound.result():
            print(f"THE TESTS FAIL WITHOUT ANY FAULT\n{failures}")
    caught = sum(outcome.fine for outcome in outcomes)
    print(f"{caught} of {len(outcomes)} caught")
    return 1 if failures or caught < len(outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
