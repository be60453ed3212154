"""How far one run equals another: the same command twice, other threads, other batches.

    python benchmarks/repeats.py [--limit 72] [--out runs/repeats]

Prints, for each pair: files that are equal byte for byte, answers that differ, how far states are
apart (of their own size), and how far the numbers of layers.csv are. The bundled model, in float32.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

from anchorscope.config import Config
from anchorscope.models import load_model
from anchorscope.pipeline import model as model_of_a_run
from anchorscope.pipeline.run import run

OTHERWISE = {
    "the same command again": {},
    "--threads 2": {"threads": 2},
    "--batch-tokens 512": {"batch_tokens": 512},
}


def states_of(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """States [layer, width] by pass and question."""
    by_pass: dict[str, dict[str, np.ndarray]] = {}
    for file in sorted(folder.glob("states/*/*.safetensors")):
        size = int.from_bytes(file.read_bytes()[:8], "little")
        head = json.loads(file.read_bytes()[8 : 8 + size])
        ids = json.loads(head["__metadata__"]["ids"])
        states = load_file(file)["states"].astype(np.float64)
        by_pass.setdefault(file.parent.name, {}).update(zip(ids, states, strict=True))
    return by_pass


def apart(one: Path, other: Path) -> dict[str, object]:
    """How far two runs are apart."""
    a, b = (pd.read_parquet(f / "samples.parquet").set_index("id") for f in (one, other))
    b = b.loc[a.index]
    same = [id for id in a.index if a["answer"][id] == b["answer"][id]]
    x, y = states_of(one), states_of(other)
    far = [
        float(np.linalg.norm(x[p][id] - y[p][id], axis=1).max() / np.linalg.norm(x[p][id]))
        for p in x
        for id in same
        if id in x[p] and id in y[p]
    ]
    files = [f.relative_to(one) for f in one.rglob("*") if f.is_file() and f.suffix in _KINDS]
    equal = [f for f in files if (other / f).is_file() and _bytes(one / f) == _bytes(other / f)]
    layers = [pd.read_csv(f / "tables/layers.csv") for f in (one, other)]
    gap = (layers[0]["delta_p"] - layers[1]["delta_p"]).abs().max()
    return {
        "files equal": f"{len(equal)} of {len(files)}",
        "answers that differ": len(a) - len(same),
        "states apart, at most": f"{max(far):.1e}",
        "ΔP apart, at most (points)": f"{gap:.2g}",
    }


_KINDS = (".csv", ".parquet", ".safetensors")


def _bytes(file: Path) -> bytes:
    return file.read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=72)
    parser.add_argument("--out", type=Path, default=Path("runs/repeats"))
    asked = parser.parse_args()
    base = {
        "data": ("atlas",), "limit": asked.limit, "max_tokens": 8, "resamples": 100, "threads": 1,
        "fold_seeds": 1, "prompt": "text", "dtype": "float32", "device": "cpu", "evidence": (),
    }  # fmt: skip
    model = load_model("bundled", device="cpu", dtype="float32")
    first = run(model, out=asked.out / "first", config=Config(**base)).path
    model_of_a_run.require_understood = lambda model: None  # the same weights were proved just now
    rows = []
    for number, (name, other) in enumerate(OTHERWISE.items()):
        again = run(
            model, out=asked.out / f"other-{number}", config=Config(**{**base, **other})
        ).path
        rows.append({"": name, **apart(first, again)})
        print(rows[-1], flush=True)
    print(pd.DataFrame(rows).to_markdown(index=False) if _tabulates() else pd.DataFrame(rows))


def _tabulates() -> bool:
    try:
        import tabulate  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
