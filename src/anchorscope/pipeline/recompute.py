"""Compute the tables of a run again from its answers and states, in a folder of their own.

No model is loaded. Probes are trained again, every table is made again, and each file is compared
with the one in the run folder, byte for byte.
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
from anchorscope.pipeline.request import Run
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.manifest import MARKERS, REMAKE, Checked
from anchorscope.run_folder.samples import stored_samples, to_frame
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView

_INPUTS = ("answers", "states", "outputs", "evidence")
_ROUNDING = 1e-6  # relative; more is another number


def recomputed(path: Path, *, progress: Progress | None = None) -> Iterator[Checked]:
    """Each table of a finished run, computed again and compared."""
    view = RunView.open(path, collected_ok=True)
    if not (view.path / "answers").is_dir() or not (view.path / "states").is_dir():
        yield Checked(name="--deep", note="no answers or no states here: nothing is computed again")
        return
    with tempfile.TemporaryDirectory() as place:
        again = Path(place)
        # A folder that reads the run's answers and states, and writes beside nothing of it.
        (again / MARKERS).mkdir()
        for name in (*_INPUTS, *(f"{MARKERS}/{name}" for name in _INPUTS)):
            if (view.path / name).is_dir():
                (again / name).symlink_to((view.path / name).absolute())
        _compute(view, again, progress or Quiet())
        names = [file.relative_to(again) for file in sorted(again.rglob("*")) if file.is_file()]
        for name in names:
            if name.parts[0] in ("tables", "probes", "samples.parquet"):
                yield _compared(view.path, again, name.as_posix())


def _compute(view: RunView, again: Path, progress: Progress) -> None:
    """Every table that answers and states decide, under `again`."""
    config = Config.restore(dict(view.config))
    for field, noted in {"evidence": "evidence", "ablate": "ablated"}.items():
        if noted in view.info:
            config = replace(config, **{field: tuple(view.info[noted])})
    run = Run(store=Store(again, info=dict(view.info)), config=config, progress=progress)
    samples = [sample for own in stored_samples(run.store).values() for sample in own]
    spans = spans_table([sample.question for sample in samples])
    run.store.write("tables/spans.csv", partial(spans.to_csv, index=False))
    if "only" in view.info.get("identity", {}):
        run.store.write("samples.parquet", to_frame(samples).to_parquet)
    else:
        analyse(run, stored_datasets(run))


def _compared(path: Path, again: Path, name: str) -> Checked:
    """A file of the run against the one made again."""
    if not (path / name).is_file():
        return Checked(name=name, wrong="computed again, it is not in the folder", do=REMAKE)
    if (path / name).read_bytes() == (again / name).read_bytes():
        return Checked(name=name, note="computed again, the same bytes")
    if _same_but_for_rounding(path / name, again / name):
        return Checked(name=name, note="computed again, equal to rounding")
    return Checked(
        name=name,
        wrong="computed again from answers and states, it comes out otherwise",
        do="if versions are the same, the folder was tampered with: make the run again",
    )


def _same_but_for_rounding(one: Path, other: Path) -> bool:
    """Whether two files differ in nothing but the last digits of their numbers."""
    if one.suffix == ".safetensors":
        a, b = load_file(one), load_file(other)
        if {n: own.shape for n, own in a.items()} != {n: own.shape for n, own in b.items()}:
            return False
        # By the largest number of a tensor: small weights are sums in which large ones cancel.
        return all(np.abs(a[n] - b[n]).max() <= _ROUNDING * np.abs(a[n]).max() for n in a)
    if one.suffix == ".json":  # about the weights beside it, whose checksum is one of bytes
        facts = [json.loads(f.read_text(encoding="utf-8")) | {"sha256": ""} for f in (one, other)]
        return facts[0] == facts[1]
    read = {".csv": pd.read_csv, ".parquet": pd.read_parquet}.get(one.suffix)
    if read is None:
        return False
    try:
        pd.testing.assert_frame_equal(read(one), read(other), rtol=_ROUNDING, atol=_ROUNDING)
    except AssertionError:
        return False
    return True
