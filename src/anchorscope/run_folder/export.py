"""Export states and labels of a run to NumPy, Hugging Face datasets or probelab."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from anchorscope.errors import UserError, unknown
from anchorscope.records import Sample
from anchorscope.run_folder.states import StateBank, passes_in, shards_of
from anchorscope.run_folder.view import RunView

Format = Literal["numpy", "hf", "probelab"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True)
class Material:
    """The usable samples of some datasets of a run, in the order of their files."""

    run: RunView
    passes: tuple[str, ...]
    samples: tuple[Sample, ...]

    @classmethod
    def select(cls, run: RunView, *, passes: Sequence[str], datasets: Sequence[str]) -> Material:
        """Select the usable samples of these datasets that have a clean state."""
        for kind, names, accepted in (
            ("dataset", datasets, run.datasets),
            ("pass", passes, passes_in(run.path)),
        ):
            for name in names:
                if name not in accepted:
                    raise unknown(kind, name, accepted)
        usable = {s.id: s for s in run.answers if s.usable and s.question.dataset in datasets}
        ids = [id for shard in shards_of(run.path, "clean") for id in shard.ids if id in usable]
        if not ids:
            raise UserError(f"'{run.path}' has no usable samples of {', '.join(datasets)}.")
        return cls(run, tuple(passes), tuple(usable[id] for id in ids))

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the states: samples, layers, width."""
        return len(self.samples), *shards_of(self.run.path, "clean")[0].shape[1:]

    def dtype(self, name: str) -> np.dtype:
        """The dtype of a pass's stored states; the widest where its files differ."""
        return np.result_type(*(shard.dtype for shard in shards_of(self.run.path, name)))

    @cached_property
    def bank(self) -> StateBank:
        """The states of the samples by pass; NaN where a sample has none."""
        return StateBank(self.run.path, [sample.id for sample in self.samples])

    def table(self) -> pd.DataFrame:
        """One row for each sample: its texts, and its label, 1 for wrong and 0 for right."""
        rows = [
            {
                "id": sample.id,
                "dataset": sample.question.dataset,
                "question": sample.question.text,
                "answer": sample.answer.text,
                "accepted": " | ".join(sample.question.answers),
                "entity": sample.question.entity or "",
                "label": int(sample.verdict == "wrong"),
            }
            for sample in self.samples
        ]
        return pd.DataFrame(rows)


def write(material: Material, to: Format, out: Path) -> list[str]:
    """Write states and labels under `out`; return the lines of Python that load them."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder. Choose another --out.")
    if to == "probelab" and (find_spec("probelab") is None or find_spec("h5py") is None):
        raise UserError(
            "`--to probelab` writes with probelab's own writer, which is not installed. Install "
            f"it: {sys.executable} -m pip install 'anchorscope[probelab]'. Or take --to numpy."
        )
    writers: dict[Format, Callable[[Material, Path], str]] = {
        "numpy": _write_numpy, "hf": _write_hf, "probelab": _write_probelab,
    }  # fmt: skip
    table, layers = material.table(), material.shape[1]
    try:
        out.mkdir(parents=True, exist_ok=True)
        load = writers[to](material, out)
        if to == "hf":
            columns = f'data["{material.passes[0]}_{layers}"][:], data["label"][:]'
            return [load, f"states, labels = {columns}"]
        np.save(out / "labels.npy", table["label"].to_numpy())
        table.to_csv(out / "samples.csv", index=False)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}.") from error
    return [load, f'labels = numpy.load("{out}/labels.npy")']


def _write_numpy(material: Material, out: Path) -> str:
    """Write <pass>.npy [sample, layer, width] for each pass; return the line that loads one."""
    for name in material.passes:
        array = np.lib.format.open_memmap(
            out / f"{name}.npy", mode="w+", dtype=material.dtype(name), shape=material.shape
        )
        material.bank.all_layers(name, array)
        array.flush()
    return f'states = numpy.load("{out}/{material.passes[0]}.npy", mmap_mode="r")'


def _write_hf(material: Material, out: Path) -> str:
    """Write a Hugging Face dataset: texts, label, and states in a column `<pass>_<layer>`."""
    import pyarrow as pa
    from datasets import ClassLabel, Dataset

    table, (_, layers, width) = pa.Table.from_pandas(material.table()), material.shape
    for name in material.passes:
        for layer in range(1, layers + 1):
            states = material.bank.layer(name, layer).astype(material.dtype(name), copy=False)
            column = pa.FixedSizeListArray.from_arrays(pa.array(states.ravel()), width)
            table = table.append_column(f"{name}_{layer}", column)
    made = Dataset(table).cast_column("label", ClassLabel(names=["right", "wrong"]))
    made.save_to_disk(str(out))
    return f'data = datasets.load_from_disk("{out}").with_format("numpy")'


def _write_probelab(material: Material, out: Path) -> str:
    """Write <pass>.h5 for each pass with probelab's own writer, in float32."""
    import torch
    from probelab import Activations
    from probelab.storage import save_hdf5

    layers = tuple(range(1, material.shape[1] + 1))
    for name in material.passes:
        states = material.bank.all_layers(name)
        about: Any = {"model": material.run.model_name, "pass": name, "labels": "labels.npy"}
        made = Activations(torch.from_numpy(states), dims="blh", layers=layers, metadata=about)
        save_hdf5(made, str(out / f"{name}.h5"), dtype="float32")
    return f'states = probelab.storage.load_hdf5("{out}/{material.passes[0]}.h5")'
