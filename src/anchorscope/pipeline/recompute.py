"""The tables of a run computed once more from its answers and states, in a folder of their own.

No model is loaded. Probes are trained again, every table is made again, and each file is held
against the one in the run folder, byte for byte.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

from anchorscope.config import Config
from anchorscope.pipeline.analyse import analyse, stored_datasets
from anchorscope.pipeline.prepare import spans_table
from anchorscope.pipeline.stages import Run, stored_answers
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.manifest import MARKERS, REMAKE, Checked
from anchorscope.run_folder.samples import to_frame
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView

_INPUTS = ("answers", "states", "outputs", "evidence")
_ROUNDING = 1e-6  # relative; more is another number
# The same of a run of an earlier version whose fits a GPU made: two scores next to each other may
# come in the other order, and an AUROC of few samples counts every pair.
_OTHER_PLACE = 1e-3


def recomputed(path: Path, *, progress: Progress | None = None) -> Iterator[Checked]:
    """Each table of a finished run, computed again and compared; layers.csv by a plain path too."""
    view = RunView.open(path, collected_ok=True)
    if not (view.path / "answers").is_dir() or not (view.path / "states").is_dir():
        yield Checked(name="--deep", note="no answers or no states here: nothing is computed again")
        return
    with tempfile.TemporaryDirectory() as place:
        again = Path(place)
        _link(view.path, again)
        _compute(view, again, progress or Quiet())
        rounding = _OTHER_PLACE if view.info.get("fits_on") else _ROUNDING
        files = sorted(p for p in again.rglob("*") if p.is_file() and _made(p.relative_to(again)))
        for file in files:
            yield _compared(view.path, again, file.relative_to(again).as_posix(), rounding)
    if "only" not in view.info.get("identity", {}):
        yield plain_layers(view)


def _link(path: Path, again: Path) -> None:
    """A folder that reads the run's answers and states, and writes beside nothing of it."""
    (again / MARKERS).mkdir()
    for name in _INPUTS:
        for part in (name, f"{MARKERS}/{name}"):
            if (path / part).is_dir():
                (again / part).symlink_to((path / part).absolute())


def _made(name: Path) -> bool:
    return name.parts[0] in ("tables", "probes", "samples.parquet")


def _compute(view: RunView, again: Path, progress: Progress) -> None:
    """Every table that answers and states decide, under `again`."""
    config = Config.restore(dict(view.config))
    more = {"evidence": view.info.get("evidence"), "ablate": view.info.get("ablated")}
    config = replace(config, **{n: tuple(of) for n, of in more.items() if of is not None})
    run = Run(store=Store(again, info=dict(view.info)), config=config, sets=(), progress=progress)
    shards = len(list((view.path / "answers").glob("*.parquet")))
    samples = [s for number in range(shards) for s in stored_answers(run.store, number)]
    spans = spans_table([sample.question for sample in samples])
    run.store.write("tables/spans.csv", partial(spans.to_csv, index=False))
    if "only" in view.info.get("identity", {}):
        run.store.write("samples.parquet", to_frame(samples).to_parquet)
    else:
        analyse(run, stored_datasets(run))


def _compared(path: Path, again: Path, name: str, rounding: float) -> Checked:
    """A file against the one made again."""
    if not (path / name).is_file():
        return Checked(name=name, wrong="computed again, it is not in the folder", do=REMAKE)
    if (path / name).read_bytes() == (again / name).read_bytes():
        return Checked(name=name, note="computed again, the same bytes")
    apart = _apart(path / name, again / name)
    if apart <= rounding:
        return Checked(name=name, note=f"computed again, equal to rounding ({apart:.1e})")
    return Checked(
        name=name,
        wrong="computed again from answers and states, it comes out otherwise",
        do="if versions are the same, the folder was tampered with: make the run again",
    )


def _apart(one: Path, other: Path) -> float:
    """The largest relative difference of two tables; infinite where anything else differs."""
    if one.suffix == ".safetensors":
        return _weights_apart(load_file(one), load_file(other))
    if one.suffix == ".json":  # about the weights beside it, whose checksum is one of bytes
        about = [json.loads(of.read_text(encoding="utf-8")) | {"sha256": ""} for of in (one, other)]
        return 0.0 if about[0] == about[1] else np.inf
    if one.suffix not in (".csv", ".parquet"):
        return np.inf
    read = pd.read_csv if one.suffix == ".csv" else pd.read_parquet
    a, b = read(one), read(other)
    if list(a) != list(b) or len(a) != len(b):
        return np.inf
    numbers = [name for name in a if pd.api.types.is_float_dtype(a[name])]
    rest = [name for name in a if name not in numbers]
    texts = [of[rest].astype(object).where(of[rest].notna(), "") for of in (a, b)]  # NaN is not NaN
    if texts[0].ne(texts[1]).to_numpy().any():
        return np.inf
    x, y = a[numbers].to_numpy(float), b[numbers].to_numpy(float)
    if not np.array_equal(np.isnan(x), np.isnan(y)):
        return np.inf
    gaps = np.abs(x - y) / np.maximum(1.0, np.abs(x))
    return float(np.nanmax(gaps, initial=0.0))


def _weights_apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The same of two probes' weights, each against the largest of its tensor."""
    if {n: of.shape for n, of in one.items()} != {n: of.shape for n, of in other.items()}:
        return np.inf
    gaps = [np.abs(of - other[n]).max() / max(1e-12, np.abs(of).max()) for n, of in one.items()]
    return float(max(gaps, default=0.0))


def plain_layers(view: RunView) -> Checked:
    """layers.csv against means of ΔP taken straight from pathways.parquet."""
    rows, unit = view.pathways, str(view.config.get("delta", "points"))
    effect = _effects(rows, unit)
    keys = ["dataset", "layer", "mode", "pathway"]
    means = effect.groupby([rows[key] for key in keys], observed=True).agg(["size", "mean"])
    worst, name = 0.0, "tables/layers.csv, by a plain path"
    for row in view.layers.to_dict("records"):
        key = tuple(row[k] for k in keys)
        n, mean = means.loc[key] if key in means.index else (0, np.nan)
        if int(n) != int(row["n"]):
            return Checked(
                name=name, wrong=f"{key}: n is {row['n']}, and {int(n)} by hand", do=REMAKE
            )
        if n:
            worst = max(worst, abs(float(mean) - float(row["delta_p"])))
    if worst > _ROUNDING:
        return Checked(name=name, wrong=f"ΔP is off by up to {worst:.2g}", do=REMAKE)
    return Checked(name=name, note=f"means by hand agree to {worst:.0e}")


def _effects(rows: pd.DataFrame, unit: str) -> pd.Series:
    """ΔP of every row on its clean prediction, in the run's unit."""
    sign = np.where(rows["prediction"] == 1, 1.0, -1.0)
    clean, cut = sign * rows["logit_clean"], sign * rows["logit_knockout"]
    if unit == "logit":
        return pd.Series(cut - clean)
    before, after = 1 / (1 + np.exp(-clean)), 1 / (1 + np.exp(-cut))
    return pd.Series(100 * (after - before) / (before if unit == "relative" else 1.0))
