"""Run the same commands in two checkouts and compare the results byte for byte.

    python scripts/compare_checkouts.py OLD NEW [--options "..."] [--limit 80] [--work FOLDER]

OLD and NEW are checkouts (for example of `git worktree add OLD COMMIT`). In each, the bundled
model answers LIMIT questions of both built-in sets with all evidence and every ablation, and
detectors are evaluated on the result. OPTIONS are further ones of `run`, such as another model.
run.json (times, versions), report.html (its layout) and the markers (they follow from the files)
are not compared, nor are the milliseconds in the table of detectors.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

RUN = "run --evidence all --ablate spans,where,layers --limit {limit} --out {out}/run {options}"
DETECTORS = "detect eval {out}/run --methods probe,mop,pr,min-log-prob,auto --out {out}/detectors"
OTHER = {"run.json", "report.html"}  # times, versions, layout
CLIP = re.compile(rb"\bp[0-9a-f]{10}\b")
CLOCKS = {"ms", "ms_per_answer"}  # columns that hold a time


def main() -> int:
    """Compare two checkouts; exit code 0 where all files are equal."""
    options = _options()
    work = Path(options.work or tempfile.mkdtemp(prefix="checkouts-"))
    folders = []
    for name, checkout in (("old", options.old), ("new", options.new)):
        folders.append(work / name)
        for command in (RUN, DETECTORS):
            words = command.format(
                limit=options.limit, out=work / name, options=options.options
            ).split()
            _anchorscope(checkout, words)
    alike, different = [], []
    for file, reason in compare(*folders):
        (different if reason else alike).append(file)
        if reason:
            print(f"DIFFERENT {file}: {reason}")
    print(f"{len(alike)} files alike byte for byte, {len(different)} different, under {work}")
    for kind, count in _kinds(alike).items():
        print(f"  {count:4d} {kind}")
    return 1 if different else 0


def compare(old: Path, new: Path) -> Iterator[tuple[str, str]]:
    """Yield each file of either folder and how the two differ; "" where they are equal."""
    names = {str(f.relative_to(top)) for top in (old, new) for f in top.rglob("*") if f.is_file()}
    for name in sorted(names):
        if Path(name).name not in OTHER and "markers" not in Path(name).parts:
            yield name, _difference(old / name, new / name)


def _difference(old: Path, new: Path) -> str:
    if not (old.is_file() and new.is_file()):
        return "only in the " + ("old" if old.is_file() else "new")
    if old.read_bytes() == new.read_bytes():
        return ""
    if old.suffix in (".csv", ".parquet"):
        return _of_tables(old, new)
    if old.suffix == ".svg":
        # matplotlib names clip paths after addresses in memory.
        bare = [CLIP.sub(b"", file.read_bytes()) for file in (old, new)]
        return "" if bare[0] == bare[1] else "other bytes"
    if old.name == "detectors.md":
        return ""  # written from detectors.csv, which is compared, with its milliseconds
    return "other bytes"


def _of_tables(old: Path, new: Path) -> str:
    read = pd.read_csv if old.suffix == ".csv" else pd.read_parquet
    tables = [read(file) for file in (old, new)]
    kept = [table.drop(columns=[c for c in table if c in CLOCKS]) for table in tables]
    if kept[0].equals(kept[1]):
        return ""
    if list(kept[0]) != list(kept[1]) or len(kept[0]) != len(kept[1]):
        return "other columns or rows"
    columns = [name for name in kept[0] if not kept[0][name].equals(kept[1][name])]
    return f"columns {', '.join(columns)}"


def _kinds(names: list[str]) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for name in names:
        parts = Path(name).parts
        kind = f"{'/'.join(parts[:2])}/*{Path(name).suffix}" if len(parts) > 2 else name
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def _anchorscope(checkout: Path, words: list[str]) -> None:
    env = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src")}
    print(f"{checkout}: anchorscope {' '.join(words)}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "anchorscope", *words], env=env, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{checkout} failed:\n{done.stderr[-2000:]}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--options", default="", help="further options of anchorscope run")
    parser.add_argument("--limit", type=int, default=80)
    parser.add_argument("--work", help="where the results go; default: a temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
