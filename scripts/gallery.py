"""Make the gallery of finished reports: the demo, states from a file, and a model of yours.

python scripts/gallery.py                            # docs/gallery/demo and docs/gallery/own-states
python scripts/gallery.py --demo runs/demo           # a finished demo is used, not made again
python scripts/gallery.py --model FILE.gguf --data popqa.jsonl.gz,nq_open.jsonl.gz --limit 2000
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from anchorscope.run_folder.view import RunView
from anchorscope.show.view_page import write_view

GALLERY = Path(__file__).parents[1] / "docs" / "gallery"
PASSES = ("clean", "knockout", "neutral")


def anchorscope(*words: object) -> None:
    """Run a command of anchorscope; its error ends this script."""
    command = [sys.executable, "-m", "anchorscope", *map(str, words)]
    subprocess.run(command, check=True)


def show(run: Path, name: str, out: Path) -> None:
    """Copy a run's report into the gallery, and write its page of samples there."""
    view, home = RunView.open(run), out / name
    home.mkdir(parents=True, exist_ok=True)
    print(shutil.copy(run / "report.html", home / "report.html"))
    print(write_view([view], home / "view.html"))


def states_of(run: Path, work: Path) -> Path:
    """Export the states of a run's `atlas` to one .npz file, as another tool would."""
    exported = work / "exported"
    anchorscope("export", run, "--to", "numpy", "--passes", ",".join(PASSES), "--data", "atlas",
                "--out", exported)  # fmt: skip
    samples = pd.read_csv(exported / "samples.csv", keep_default_na=False)
    arrays = {name: np.load(exported / f"{name}.npy") for name in PASSES}
    texts = {name: samples[name].to_numpy(str) for name in ("id", "question", "answer", "entity")}
    np.savez(work / "states.npz", z=np.load(exported / "labels.npy"), **arrays, **texts)
    return work / "states.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"))
    parser.add_argument("--model")
    parser.add_argument("--data", default="popqa,triviaqa,hotpotqa,nq")
    parser.add_argument("--limit", default="2000")
    parser.add_argument("--work", type=Path, default=Path("runs/gallery"))
    parser.add_argument("--out", type=Path, default=GALLERY)
    options = parser.parse_args()
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    anchorscope("run", "--limit", 400, "--prompt", "text", "--out", options.demo)
    show(options.demo, "demo", options.out)
    if not (work / "states.npz").exists():
        states_of(options.demo, work)
    anchorscope("analyse", work / "states.npz", "--out", work / "own-states",
                "--title", "SmolLM2-135M, states from a file")  # fmt: skip
    show(work / "own-states", "own-states", options.out)
    if options.model:
        own = work / Path(options.model).stem
        anchorscope("run", "--model", options.model, "--data", options.data, "--limit",
                    options.limit, "--prompt", "text", "--out", own)  # fmt: skip
        show(own, own.name, options.out)


if __name__ == "__main__":
    main()
