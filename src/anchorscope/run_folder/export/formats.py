"""The formats: plain NumPy files, a folder of Hugging Face datasets, probelab's HDF5 files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np

from anchorscope.errors import UserError
from anchorscope.run_folder.export.material import Material
from anchorscope.run_folder.view import RunView, records

Format = Literal["numpy", "hf", "probelab"]
FORMATS: tuple[Format, ...] = get_args(Format)


def write(material: Material, to: Format, out: Path) -> list[str]:
    """Writes everything under `out`; the lines of Python that load it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder. Choose another --out.")
    writers: dict[Format, Callable[[Material, Path], list[str]]] = {
        "numpy": _numpy, "hf": _hf, "probelab": _probelab,
    }  # fmt: skip
    if to == "probelab":
        _require_probelab()
    try:
        out.mkdir(parents=True, exist_ok=True)
        return writers[to](material, out)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}.") from error


def _numpy(material: Material, out: Path) -> list[str]:
    """<pass>.npy [sample, layer, width], labels.npy [sample], and samples.csv in the same order."""
    for name in material.passes:
        file, kind = out / f"{name}.npy", material.dtype(name)
        array = np.lib.format.open_memmap(file, mode="w+", dtype=kind, shape=material.shape)
        material.states(name, array)
        array.flush()
    _labels_and_table(material, out)
    return [
        f'states = numpy.load("{out}/{material.passes[0]}.npy", mmap_mode="r")',
        f'labels = numpy.load("{out}/labels.npy")',
    ]


def _labels_and_table(material: Material, out: Path) -> None:
    np.save(out / "labels.npy", material.labels)
    material.table().to_csv(out / "samples.csv", index=False)


def _hf(material: Material, out: Path) -> list[str]:
    """A dataset on disk: texts, label, and a column `<pass>_<layer>` of states for each layer."""
    from datasets import Dataset

    # Its usual cache would keep a second copy under the home folder.
    with TemporaryDirectory(dir=out.parent) as cache:
        made: Any = Dataset.from_generator(
            hf_rows,
            features=_features(material),
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
        f'states, labels = data["{material.passes[0]}_{material.shape[1]}"][:], data["label"][:]',
    ]


def hf_rows(
    folder: str, passes: tuple[str, ...], datasets: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """The rows of the exported dataset, one after the other."""
    run = RunView.open(folder, collected_ok=True)
    material = Material.of(run, passes=passes, datasets=datasets)
    parts = [_states_of_rows(material, name) for name in passes]
    for number, row in enumerate(records(material.table())):
        yield {**row, **{key: of for part in parts for key, of in part(number).items()}}


def _features(material: Material) -> Any:
    from datasets import ClassLabel, Features, List, Value

    _, layers, width = material.shape
    texts = {n: Value("string") for n in ("id", "dataset", "question", "answer", "accepted")}
    states = {
        f"{name}_{layer}": List(Value(str(material.dtype(name))), length=width)
        for name in material.passes
        for layer in range(1, layers + 1)
    }
    label = ClassLabel(names=["right", "wrong"])
    return Features({**texts, "entity": Value("string"), "label": label, **states})


def _states_of_rows(material: Material, name: str) -> Callable[[int], dict[str, np.ndarray]]:
    """A function from a row to its states by column; one file of states is in memory at a time."""
    blocks, held = material.blocks(name), {}
    empty = np.full(material.shape[1:], np.nan, dtype=material.dtype(name))
    last = {id: row for row, id in enumerate(material.place)}

    def of(row: int) -> dict[str, np.ndarray]:
        id = material.samples[row].id
        while id not in held:
            ids, states = next(blocks, ([], empty[:0]))
            if not ids:
                break
            held.update(zip(ids, states, strict=True))
        for done in [known for known in held if last[known] < row]:
            del held[done]
        state = held.get(id, empty)
        return {f"{name}_{layer}": part for layer, part in enumerate(state, start=1)}

    return of


def _probelab(material: Material, out: Path) -> list[str]:
    """<pass>.h5 by probelab's own writer, in float32; labels.npy and samples.csv beside it."""
    import torch
    from probelab import Activations
    from probelab.storage import save_hdf5

    layers = tuple(range(1, material.shape[1] + 1))
    for name in material.passes:
        states = material.states(name, np.empty(material.shape, dtype=np.float32))
        about = {"model": material.run.model_name, "pass": name, "labels": "labels.npy"}
        made = Activations(torch.from_numpy(states), dims="blh", layers=layers, metadata=about)
        save_hdf5(made, str(out / f"{name}.h5"), dtype="float32")
    _labels_and_table(material, out)
    return [
        f'states = probelab.storage.load_hdf5("{out}/{material.passes[0]}.h5")',
        f'labels = numpy.load("{out}/labels.npy")',
    ]


def _require_probelab() -> None:
    if find_spec("probelab") is None or find_spec("h5py") is None:
        raise UserError(
            "`--to probelab` writes with probelab's own writer, which is not installed. Install "
            f"it: {sys.executable} -m pip install 'anchorscope[probelab]'. Or take --to numpy."
        )
