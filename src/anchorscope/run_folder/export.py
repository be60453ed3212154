"""States and labels of a run in other tools' formats: NumPy, Hugging Face datasets, probelab."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from anchorscope.errors import UserError, unknown
from anchorscope.records import Sample
from anchorscope.run_folder.states import StateBank, passes_in, shards_of
from anchorscope.run_folder.view import RunView, records

Format = Literal["numpy", "hf", "probelab"]
FORMATS: tuple[Format, ...] = get_args(Format)
_ROWS = 256  # of an exported dataset, in memory at a time


@dataclass(frozen=True)
class Material:
    """The usable samples of some datasets of a run, in the order of their files."""

    run: RunView
    passes: tuple[str, ...]
    samples: tuple[Sample, ...]

    @classmethod
    def select(cls, run: RunView, *, passes: Sequence[str], datasets: Sequence[str]) -> Material:
        """The samples with a verdict of right or wrong that have a clean state."""
        for name in datasets:
            if name not in run.datasets:
                raise unknown("dataset", name, run.datasets)
        for name in passes:
            if name not in passes_in(run.path):
                raise unknown("pass", name, passes_in(run.path))
        usable = {s.id: s for s in run.answers if s.usable and s.question.dataset in datasets}
        ids = [id for shard in shards_of(run.path, "clean") for id in shard.ids if id in usable]
        if not ids:
            raise UserError(f"'{run.path}' has no usable samples of {', '.join(datasets)}.")
        return cls(run, tuple(passes), tuple(usable[id] for id in ids))

    @property
    def labels(self) -> np.ndarray:
        """[sample] int64: 1 = wrong, 0 = right."""
        return np.array([int(sample.verdict == "wrong") for sample in self.samples])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Samples, layers, width."""
        return len(self.samples), *shards_of(self.run.path, "clean")[0].shape[1:]

    def dtype(self, name: str) -> np.dtype:
        """As the states of a pass are stored; the widest of its files."""
        return np.result_type(*(shard.dtype for shard in shards_of(self.run.path, name)))

    def copy_states(self, name: str, out: np.ndarray) -> np.ndarray:
        """`out` [sample, layer, width], filled with a pass's states; NaN where there is none."""
        bank = StateBank(self.run.path, [sample.id for sample in self.samples])
        return bank.all_layers(name, out)

    def table(self) -> pd.DataFrame:
        """One row for each sample: its texts and its label."""
        rows = [
            {
                "id": sample.id,
                "dataset": sample.question.dataset,
                "question": sample.question.text,
                "answer": sample.answer.text,
                "accepted": " | ".join(sample.question.answers),
                "entity": sample.question.entity or "",
            }
            for sample in self.samples
        ]
        return pd.DataFrame(rows).assign(label=self.labels)


def write(material: Material, to: Format, out: Path) -> list[str]:
    """Write everything under `out`; the lines of Python that load it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder. Choose another --out.")
    if to == "probelab" and (find_spec("probelab") is None or find_spec("h5py") is None):
        raise UserError(
            "`--to probelab` writes with probelab's own writer, which is not installed. Install "
            f"it: {sys.executable} -m pip install 'anchorscope[probelab]'. Or take --to numpy."
        )
    writers: dict[Format, Callable[[Material, Path], list[str]]] = {
        "numpy": _write_numpy, "hf": _write_hf, "probelab": _write_probelab,
    }  # fmt: skip
    try:
        out.mkdir(parents=True, exist_ok=True)
        return writers[to](material, out)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}.") from error


def _write_numpy(material: Material, out: Path) -> list[str]:
    """<pass>.npy [sample, layer, width], labels.npy [sample], and samples.csv in the same order."""
    for name in material.passes:
        array = np.lib.format.open_memmap(
            out / f"{name}.npy", mode="w+", dtype=material.dtype(name), shape=material.shape
        )
        material.copy_states(name, array)
        array.flush()
    _write_labels(material, out)
    return [
        f'states = numpy.load("{out}/{material.passes[0]}.npy", mmap_mode="r")',
        f'labels = numpy.load("{out}/labels.npy")',
    ]


def _write_labels(material: Material, out: Path) -> None:
    np.save(out / "labels.npy", material.labels)
    material.table().to_csv(out / "samples.csv", index=False)


def _write_hf(material: Material, out: Path) -> list[str]:
    """A dataset on disk: texts, label, and a column `<pass>_<layer>` of states for each layer."""
    from datasets import ClassLabel, Dataset, Features, List, Value

    texts = ("id", "dataset", "question", "answer", "accepted", "entity")
    _, layers, width = material.shape
    states = {
        f"{name}_{layer}": List(Value(str(material.dtype(name))), length=width)
        for name in material.passes
        for layer in range(1, layers + 1)
    }
    label = ClassLabel(names=["right", "wrong"])
    # Its usual cache would keep a second copy under the home folder.
    with TemporaryDirectory(dir=out.parent) as cache:
        made: Any = Dataset.from_generator(
            hf_rows,
            features=Features({**dict.fromkeys(texts, Value("string")), "label": label, **states}),
            cache_dir=cache,
            # Plain values, since they are hashed.
            gen_kwargs={
                "folder": str(material.run.path),
                "passes": material.passes,
                "datasets": tuple(dict.fromkeys(s.question.dataset for s in material.samples)),
            },
        )
        made.save_to_disk(str(out))
    return [
        f'data = datasets.load_from_disk("{out}").with_format("numpy")',
        f'states, labels = data["{material.passes[0]}_{layers}"][:], data["label"][:]',
    ]


def hf_rows(
    folder: str, passes: tuple[str, ...], datasets: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """The rows of the exported dataset, some of them in memory at a time."""
    run = RunView.open(folder, collected_ok=True)
    rows = records(Material.select(run, passes=passes, datasets=datasets).table())
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        bank = StateBank(run.path, [row["id"] for row in part])
        states = {name: bank.all_layers(name) for name in passes}
        for number, row in enumerate(part):
            columns = {
                f"{name}_{layer}": state
                for name, own in states.items()
                for layer, state in enumerate(own[number], start=1)
            }
            yield {**row, **columns}


def _write_probelab(material: Material, out: Path) -> list[str]:
    """<pass>.h5 by probelab's own writer, in float32; labels.npy and samples.csv beside it."""
    import torch
    from probelab import Activations
    from probelab.storage import save_hdf5

    layers = tuple(range(1, material.shape[1] + 1))
    for name in material.passes:
        states = material.copy_states(name, np.empty(material.shape, dtype=np.float32))
        about = {"model": material.run.model_name, "pass": name, "labels": "labels.npy"}
        made = Activations(torch.from_numpy(states), dims="blh", layers=layers, metadata=about)
        save_hdf5(made, str(out / f"{name}.h5"), dtype="float32")
    _write_labels(material, out)
    return [
        f'states = probelab.storage.load_hdf5("{out}/{material.passes[0]}.h5")',
        f'labels = numpy.load("{out}/labels.npy")',
    ]
