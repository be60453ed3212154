"""Material from a finished run folder, one for each dataset."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import safe_open

from anchorscope.detect.material import Material, Text
from anchorscope.errors import UserError
from anchorscope.records import Sample
from anchorscope.samples import from_frame
from anchorscope.store import RUN, read_info


@dataclass(frozen=True)
class RunFolder:
    """A finished run, as detectors read it."""

    path: Path
    info: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """The run in a folder; what is no finished run is refused."""
        path = Path(path).expanduser()
        info = read_info(path)
        if info is None:
            raise UserError(f"'{path}' is not a run folder: it has no {RUN}. Give a finished run.")
        if info.get("finished") is not True:
            raise UserError(f"The run in '{path}' is not finished. Run its command again first.")
        return cls(path, info)

    @property
    def model(self) -> dict[str, Any]:
        return self.info["model"]

    @property
    def weights(self) -> str:
        """What tells this model from every other; its name where nothing better is known."""
        return str(self.model.get("weights") or self.model["name"])

    @cached_property
    def samples(self) -> list[Sample]:
        return from_frame(pd.read_parquet(self.path / "samples.parquet"))

    @cached_property
    def p_true(self) -> dict[str, float]:
        """P(True) by question, where it was asked for."""
        files = sorted((self.path / "evidence" / "ptrue").glob("*.parquet"))
        frames = [pd.read_parquet(file) for file in files]
        return {i: float(p) for f in frames for i, p in zip(f["id"], f["p_true"], strict=True)}

    def datasets(self) -> list[str]:
        return [str(given["name"]) for given in self.info["datasets"]]

    def material(self, dataset: str, *, seed: int = 0, limit: int | None = None) -> Material:
        """The usable answers of one dataset; with a `limit`, as many right as wrong ones, that
        many in all at most.
        """
        used = [s for s in self.samples if s.question.dataset == dataset and s.usable]
        if not used:
            raise UserError(f"'{self.path}' has no usable answers of '{dataset}'.")
        if limit is not None:
            used = balanced(used, limit, seed)
        return Material(
            name=dataset,
            texts=tuple(self._text(sample) for sample in used),
            z=np.array([int(s.verdict == "wrong") for s in used], dtype=np.int64),
            bank=RunBank(self.path, [s.id for s in used]),
            rows=np.arange(len(used)),
            seed=seed,
        )

    def _text(self, sample: Sample) -> Text:
        popularity = sample.question.popularity
        return Text(
            id=sample.id,
            question=sample.question.text,
            answer=sample.answer.text,
            log_probs=sample.answer.log_probs,
            exact=tuple(token - len(sample.prompt_ids) for token in sample.exact_answer),
            first_entropy=sample.answer.first_entropy,
            entity=sample.question.entity,
            popularity=float(np.log10(popularity)) if popularity else np.nan,
            p_true=self.p_true.get(sample.id, np.nan),
        )


def balanced(samples: list[Sample], limit: int, seed: int) -> list[Sample]:
    """As many right as wrong answers in the given order, `limit` in all at most, by the seed."""
    rng = np.random.default_rng(seed)
    wrong = np.array([sample.verdict == "wrong" for sample in samples])
    classes = [rng.permutation(np.flatnonzero(wrong == which)) for which in (False, True)]
    each = min(limit // 2, *map(len, classes))
    return [samples[n] for n in np.sort(np.concatenate([of[:each] for of in classes]))]


# Layers that the next detector may read too. Every process that fits detectors keeps its own.
_KEPT_BYTES = 2**29
_ONE_AT_A_TIME = threading.Lock()  # for a caller who asks joblib for threads instead


class RunBank:
    """The states of a run folder, a layer read from disk when it is first asked for.

    Sent to another process it goes without what it has read: files are shared, memory is not.
    """

    def __init__(self, path: Path, ids: list[str]) -> None:
        self.folder, self.place = path / "states", {id: row for row, id in enumerate(ids)}
        self._read: dict[tuple[str, int], np.ndarray] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_read": {}}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(p.name for p in self.folder.iterdir() if any(p.glob("*.safetensors")))

    @property
    def layers(self) -> int:
        with safe_open(self._shards("clean")[0], framework="numpy") as file:
            return int(file.get_slice("states").get_shape()[1])

    def layer(self, name: str, layer: int) -> np.ndarray:
        """The states [question, width] of one layer as stored; NaN where there is none."""
        found = self._read.get((name, layer))
        if found is None:
            found = self._load(name, layer)
            with _ONE_AT_A_TIME:
                self._make_room(found.nbytes)
                self._read[name, layer] = found
        return found

    def _make_room(self, size: int) -> None:
        """Forgets what was read first, until `size` more bytes may be kept."""
        kept = sum(states.nbytes for states in self._read.values())
        while self._read and kept + size > _KEPT_BYTES:
            kept -= self._read.pop(next(iter(self._read))).nbytes

    def _shards(self, name: str) -> list[Path]:
        files = sorted((self.folder / name).glob("*.safetensors"))
        if not files:
            raise UserError(f"'{self.folder}' holds no states of '{name}'. Collect them first.")
        return files

    def _load(self, name: str, layer: int) -> np.ndarray:
        out = np.empty(0)
        for path in self._shards(name):
            with safe_open(path, framework="numpy") as file:
                ids = json.loads(file.metadata()["ids"])
                states = file.get_slice("states")[:, layer - 1 : layer][:, 0]
            if not out.size:
                out = np.full((len(self.place), states.shape[1]), np.nan, dtype=states.dtype)
            here = [(self.place[id], row) for row, id in enumerate(ids) if id in self.place]
            to, of = [place for place, _ in here], [row for _, row in here]
            out[to] = states[of]
        return out
