"""Builds the wheel and tries it as a stranger would: empty environment, empty home, no checkout.

python scripts/try_wheel.py                                    # this Python, constraints.txt
python scripts/try_wheel.py --python PATH --python PATH        # other Pythons, one after the other
python scripts/try_wheel.py --torch 2.10.0                     # this torch, all else as it comes
python scripts/try_wheel.py --installer uv --torch 2.10.0      # uv makes and fills the environment

After the install nothing but `anchorscope get bundled` has a network. It prints each step with its
seconds; exit code 1 where one fails. Needs the packages build, twine and uv.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    "--data", "atlas", "--limit", "60", "--max-tokens", "8", "--resamples", "100",
    "--fold-seeds", "1", "--evidence", "none",
)  # fmt: skip
DEAD = "http://127.0.0.1:9"  # nobody listens there
LACKING = "anchorscope get bundled"


class Failed(Exception):
    """A step that did not do what it should, with what it printed."""


class Trial:
    """One Python, one installer, one empty environment."""

    def __init__(self, python: str, installer: str, wheel: Path, constraint: Path) -> None:
        self.python, self.installer, self.wheel, self.constraint = (
            python, installer, wheel, constraint)  # fmt: skip
        self.folder = Path(tempfile.mkdtemp(prefix="try-wheel-"))
        self.home, self.work, self.bin = (self.folder / n for n in ("home", "work", "env/bin"))
        self.home.mkdir()
        self.work.mkdir()

    def run(self) -> None:
        """Every step in turn, each with its seconds."""
        version = output([self.python, "-V"]).split()[1]
        print(f"Python {version}, {self.installer}")
        try:
            for name, step in self.steps().items():
                begun = time.monotonic()
                said = step()
                print(f"  {name:<34} {time.monotonic() - begun:6.1f} s  {said}", flush=True)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def steps(self) -> dict:
        """What is tried, in order."""
        return {
            "install": self.install,
            "anchorscope --version": self.version,
            "run without weights, offline": self.without_weights,
            "get bundled": lambda: self.anchorscope("get", "bundled").replace(str(self.home), "~"),
            "run, offline": self.main_job,
            "figure and claims, offline": self.look,
        }

    def install(self) -> str:
        """An environment with the wheel and what it needs."""
        env, how = self.folder / "env", ["--constraint", str(self.constraint), str(self.wheel)]
        if self.installer == "uv":
            uv = [sys.executable, "-m", "uv", "--quiet"]
            output([*uv, "venv", "--python", self.python, str(env)])
            output([*uv, "pip", "install", "--python", str(self.bin / "python"), *how])
        else:
            output([self.python, "-m", "venv", str(env)])
            output([str(self.bin / "python"), "-m", "pip", "install", "--quiet", *how])
        return "torch " + output([str(self.bin / "python"), "-c", _TORCH]).strip()

    def version(self) -> str:
        said = self.anchorscope("--version")
        expect(said.split()[-1] == self.wheel.name.split("-")[1], said)
        return said

    def without_weights(self) -> str:
        """Exit code 2 and one line with the command that gets them."""
        done = self._call(["run", *SMALL, "--out", "none"], offline=True)
        lines = [line for line in done.stderr.splitlines() if line.startswith("Error")]
        expect(done.returncode == 2 and LACKING in "".join(lines), done.stdout + done.stderr)
        expect("Traceback" not in done.stderr, done.stderr)
        return lines[0]

    def main_job(self) -> str:
        said = self.anchorscope("run", *SMALL, "--out", "run", offline=True)
        expect((self.work / "run" / "report.html").is_file(), said)
        return said.splitlines()[-1]

    def look(self) -> str:
        self.anchorscope("claims", "run", offline=True)
        return self.anchorscope("figure", "run", "--out", "delta_p.png", offline=True)

    def anchorscope(self, *words: str, offline: bool = False) -> str:
        done = self._call(words, offline=offline)
        expect(done.returncode == 0, done.stdout + done.stderr)
        return done.stdout.strip()

    def _call(self, words: Sequence[str], *, offline: bool) -> subprocess.CompletedProcess[str]:
        before, env = cut_off(os.environ) if offline else ([], dict(os.environ))
        env |= {"HOME": str(self.home), "COLUMNS": "200"}
        env.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait do not spin
        for name in ("PYTHONPATH", "XDG_CACHE_HOME", "ANCHORSCOPE_CACHE", "HF_HOME"):
            env.pop(name, None)
        command = [*before, str(self.bin / "anchorscope"), *words]
        return subprocess.run(command, cwd=self.work, env=env, capture_output=True, text=True)


_TORCH = "import torch; print(torch.__version__)"


def cut_off(environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Words before a command, and its environment, that leave it without a network."""
    if shutil.which("unshare") and subprocess.run(["unshare", "-rn", "true"]).returncode == 0:
        return ["unshare", "-rn"], dict(environment)
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    return [], {**environment, **dict.fromkeys(names, DEAD), "HF_HUB_OFFLINE": "1"}


def build(folder: Path) -> Path:
    """The wheel, which twine finds no fault with."""
    output([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)])
    (wheel,) = folder.glob("*.whl")
    output([sys.executable, "-m", "twine", "check", "--strict", str(wheel)])
    return wheel


def output(words: Sequence[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    expect(done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def expect(right: bool, said: str) -> None:
    if not right:
        raise Failed(said)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--python", action="append", help="default: the one that runs this")
    parser.add_argument("--installer", action="append", choices=("pip", "uv"))
    parser.add_argument("--torch", help="a version; without it constraints.txt holds")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, constraint = Path(name), ROOT / "constraints.txt"
        if asked.torch:
            constraint = folder / "torch.txt"
            constraint.write_text(f"torch=={asked.torch}\n")
        try:
            wheel = build(folder)
            print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, twine finds no fault")
            for python in asked.python or [sys.executable]:
                for installer in asked.installer or ["pip"]:
                    Trial(python, installer, wheel, constraint).run()
        except Failed as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
