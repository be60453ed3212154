"""Readings of questions beyond those that a run's probes learn from.

A question is read by the probes that held its entity's fold out, as the questions are that probes
learn from. So no probe reads a question about an entity that it has learnt from, sides a and b
share no training question, and readings of both kinds of questions compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from anchorscope.config import Config
from anchorscope.probes.folds import folds_like
from anchorscope.probes.probe_set import NO_CLASS, ProbeSet
from anchorscope.records import Sample
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.table_columns import READINGS

StateBlock = tuple[Sequence[str], np.ndarray]  # ids, and states [question, layer, width]
_CLASSES = {"wrong": 1, "right": 0}


@dataclass(frozen=True, kw_only=True)
class StoredProbes:
    """The probes of one dataset of a run, and the folds of the entities that they learnt from."""

    probes: ProbeSet
    folds: Mapping[str, int]  # by entity
    seed: int

    @classmethod
    def load(cls, store: Store, dataset: str, config: Config) -> StoredProbes:
        """Load them from probes/ and samples.parquet of a run folder."""
        place, columns = store.file("samples.parquet"), ["dataset", "entity", "fold"]
        rows = pd.read_parquet(place, columns=columns).dropna(subset=["fold"])
        rows = rows.loc[rows["dataset"] == dataset]
        return cls(
            probes=ProbeSet.load(store.file(f"probes/{dataset}")),
            folds={str(e): int(f) for e, f in zip(rows["entity"], rows["fold"], strict=True)},
            seed=config.seed,
        )

    def read(
        self, samples: Sequence[Sample], states: Mapping[str, Iterable[StateBlock]]
    ) -> pd.DataFrame:
        """Logits of z = 1: one row for each question, layer and probe, table_columns.READINGS.

        `states` are those of the samples under each pass, which has a column of the table. A
        sample without a probe position has no rows, and one without a state under a pass has NaN.
        """
        used = [s for s in samples if s.exact_answer and s.exact_question]
        entities, row = [s.question.entity for s in used], {s.id: n for n, s in enumerate(used)}
        kinds, layers = self.probes.probes, self.probes.layers
        fold = folds_like(entities, self.folds, folds=self.probes.folds, seed=self.seed)
        columns = {
            "id": list(row),
            "dataset": [s.question.dataset for s in used],
            "entity": entities,
            "z": np.array([_CLASSES.get(s.verdict, NO_CLASS) for s in used], dtype=np.int8),
            "fold": fold,
        }
        columns = {name: np.repeat(own, layers * len(kinds)) for name, own in columns.items()}
        columns["layer"] = np.tile(np.repeat(np.arange(1, layers + 1), len(kinds)), len(used))
        columns["probe"] = np.tile(kinds, len(used) * layers)
        for name, blocks in states.items():
            logits = np.full((len(used), layers, len(kinds)), np.nan, np.float32)
            for ids, own in blocks:
                rows = [row[id] for id in ids]
                logits[rows] = self.probes.logits(own, fold[rows]).transpose(1, 2, 0)
            columns[name] = logits.ravel()
        return pd.DataFrame(columns, columns=[*READINGS, *states])
