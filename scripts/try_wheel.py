"""Build the wheel and test it as a new user: empty environment, empty home, no checkout.

    python scripts/try_wheel.py            # dependencies are borrowed from this environment
    python scripts/try_wheel.py --alone    # dependencies and weights come from the package index

Needs the packages build and twine, and with --alone a network.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    "--data", "atlas", "--limit", "60", "--max-tokens", "8", "--resamples", "100",
    "--fold-seeds", "1", "--evidence", "none",
)  # fmt: skip
OFFLINE = {"HF_HUB_OFFLINE": "1"} | dict.fromkeys(
    ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"
)


def call(*words: object, fails: bool = False, **options: object) -> str:
    """Run a command and return its output; its exit code must be 0, or 2 with `fails`."""
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    print(f"$ {' '.join(Path(word).name for word in command)}\n{done.stdout[-300:]}", flush=True)
    if done.returncode != (2 if fails else 0):
        sys.exit(f"exit code {done.returncode}\n{done.stderr}")
    return done.stderr if fails else done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", action="store_true", help="borrow nothing")
    alone = parser.parse_args().alone
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python, work = folder / "env" / "bin" / "python", folder / "work"
        work.mkdir()
        call(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        call(sys.executable, "-m", "twine", "check", "--strict", wheel)
        call(sys.executable, "-m", "venv", folder / "env")
        install = [python, "-m", "pip", "install", "--quiet", wheel]
        if alone:
            call(*install, "--constraint", ROOT / "constraints.txt")
        else:
            call(*install, "--no-deps")
            (packages,) = folder.glob("env/lib/python*/site-packages")
            borrowed = [path for path in sys.path if path.endswith("site-packages")]
            packages.joinpath("borrowed.pth").write_text("\n".join(borrowed))

        removed = ("PYTHONPATH", "XDG_CACHE_HOME", "ANCHORSCOPE_CACHE", "HF_HOME")
        env = {name: value for name, value in os.environ.items() if name not in removed}
        online: dict = {"cwd": work, "env": env | {"HOME": str(folder), "COLUMNS": "200"}}
        offline = online | {"env": online["env"] | OFFLINE}
        anchorscope = python.with_name("anchorscope")
        assert wheel.name.split("-")[1] in call(anchorscope, "--version", **offline)
        if alone:
            error = call(anchorscope, "run", *SMALL, "--out", "none", fails=True, **offline)
            assert "anchorscope get bundled" in error and "Traceback" not in error, error
            call(anchorscope, "get", "bundled", **online)
        call(anchorscope, "run", *SMALL, "--out", "run", **offline)
        assert (work / "run" / "report.html").is_file()
        call(anchorscope, "claims", "run", **offline)
        call(anchorscope, "figure", "run", "--out", "delta_p.png", **offline)


if __name__ == "__main__":
    main()
