"""What is exported: the usable samples of a run, their labels, and their states shard by shard."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import safe_open

from anchorscope.errors import UserError, unknown
from anchorscope.records import Sample
from anchorscope.run_folder.view import RunView

CLEAN = "clean"
Block = tuple[list[str], np.ndarray]  # ids, and their states [sample, layer, width]


@dataclass(frozen=True)
class Material:
    """The usable samples of some datasets of a run, in the order of their files."""

    run: RunView
    passes: tuple[str, ...]
    samples: tuple[Sample, ...]

    @classmethod
    def of(cls, run: RunView, *, passes: Sequence[str], datasets: Sequence[str]) -> Material:
        """The samples with a verdict of right or wrong that have a clean state."""
        for name in datasets:
            if name not in run.datasets:
                raise unknown("dataset", name, run.datasets)
        there = passes_in(run.path)
        for name in passes:
            if name not in there:
                raise unknown("pass", name, there)
        usable = {s.id: s for s in run.answers if s.usable and s.question.dataset in datasets}
        ids = [id for file in _shards(run.path, CLEAN) for id in _ids(file) if id in usable]
        if not ids:
            raise UserError(f"'{run.path}' has no usable samples of {', '.join(datasets)}.")
        return cls(run, tuple(passes), tuple(usable[id] for id in ids))

    @cached_property
    def place(self) -> dict[str, int]:
        """The row of each sample by its id."""
        return {sample.id: row for row, sample in enumerate(self.samples)}

    @property
    def labels(self) -> np.ndarray:
        """[sample] int64: 1 = wrong, 0 = right."""
        return np.array([int(sample.verdict == "wrong") for sample in self.samples])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Samples, layers, width."""
        with safe_open(_shards(self.run.path, CLEAN)[0], framework="numpy") as file:
            _, layers, width = file.get_slice("states").get_shape()
        return len(self.samples), int(layers), int(width)

    def dtype(self, name: str) -> np.dtype:
        """As the states of a pass are stored; the widest of its files."""
        types = set()
        for path in _shards(self.run.path, name):
            with safe_open(path, framework="numpy") as file:
                types.add(file.get_slice("states")[:0].dtype)
        return np.result_type(*types)

    def blocks(self, name: str) -> Iterator[Block]:
        """The states of one pass, a file at a time, of the samples that are exported."""
        for path in _shards(self.run.path, name):
            ids = _ids(path)
            rows = [row for row, id in enumerate(ids) if id in self.place]
            if rows:
                with safe_open(path, framework="numpy") as file:
                    yield [ids[row] for row in rows], file.get_tensor("states")[rows]

    def states(self, name: str, out: np.ndarray) -> np.ndarray:
        """`out` [sample, layer, width], filled with a pass's states; NaN where there is none."""
        known = np.zeros(len(self.samples), dtype=bool)
        for ids, block in self.blocks(name):
            rows = [self.place[id] for id in ids]
            out[rows], known[rows] = block, True
        out[~known] = np.nan
        return out

    def table(self) -> pd.DataFrame:
        """One row for each sample: who it is, in words."""
        return pd.DataFrame([_row(sample) for sample in self.samples])


def _row(sample: Sample) -> dict[str, Any]:
    question = sample.question
    return {
        "id": sample.id,
        "dataset": question.dataset,
        "question": question.text,
        "answer": sample.answer.text,
        "accepted": " | ".join(question.answers),
        "entity": question.entity or "",
        "label": int(sample.verdict == "wrong"),
    }


def passes_in(folder: Path) -> list[str]:
    """The passes whose states a run folder holds."""
    folders = sorted((folder / "states").glob("*"))
    return [of.name for of in folders if any(of.glob("*.safetensors"))]


def _shards(folder: Path, name: str) -> list[Path]:
    return sorted((folder / "states" / name).glob("*.safetensors"))


def _ids(path: Path) -> list[str]:
    with safe_open(path, framework="numpy") as file:
        return json.loads(file.metadata()["ids"])
