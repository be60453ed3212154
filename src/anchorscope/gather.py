"""The other evidence of a run: read from the model, piece by piece, then made into tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd

from anchorscope.analyse import Analysed, Labelled, unit_of
from anchorscope.config import Config
from anchorscope.engine.interventions import Intervention
from anchorscope.evidence.collect import (
    collect_patching,
    collect_saliency,
    reweightings,
    window_knockouts,
)
from anchorscope.evidence.head_sweep import collect_heads
from anchorscope.evidence.head_table import heads_agreement
from anchorscope.evidence.held_out import HeldOut
from anchorscope.evidence.patched import PATCHES, Asking
from anchorscope.evidence.ptrue import collect_p_true
from anchorscope.evidence.shards import Shards, evidence_name
from anchorscope.evidence.tables import Given, Settings, evidence_tables
from anchorscope.evidence.unseen import read_unseen
from anchorscope.extract import CAUGHT
from anchorscope.probes.probeset import ProbeSet
from anchorscope.probes.readings import Readings
from anchorscope.records import Sample
from anchorscope.states import load_states, shard_name
from anchorscope.store import Store

HEAD_BLOCKS = 3  # whose heads are knocked out one at a time
HEAD_QUESTIONS = 64  # of each dataset: every head of every block is a row of its own


def further_passes(config: Config) -> tuple[Intervention, ...]:
    """The passes that the evidence asked for adds to those of every run."""
    windows = window_knockouts(config.keys, config.where) if "windows" in config.evidence else ()
    return (*windows, *(reweightings() if "detectors" in config.evidence else ()))


def further_names(config: Config) -> tuple[str, ...]:
    """The states that the probes read for the evidence asked for, beside those of every run."""
    windows = (cut.name for cut in further_passes(config) if cut.boost is None)
    return (*windows, *(PATCHES if "patching" in config.evidence else ()))


@dataclass
class Gathering:
    """The evidence that needs the model, and what is made of all of it."""

    store: Store
    config: Config
    shards: int

    def before_probes(self, shards: Shards, asking: Asking) -> None:
        """Patched samples, and P(True): no probe has a say in them."""
        if "patching" in self.config.evidence:
            collect_patching(shards, asking)
        if "detectors" in self.config.evidence:
            collect_p_true(shards, style=asking.style)

    def with_probes(self, shards: Shards, parts: Sequence[Labelled], found: Analysed) -> None:
        """Saliency and heads, read by the probes that never saw the question."""
        asked = {"saliency", "heads"} & set(self.config.evidence)
        if not asked:
            return
        held = {part.dataset: self._held_out(part, found) for part in parts}
        collect_saliency(shards, held)  # heads too: it says which blocks to look into
        if "heads" in asked:
            blocks = {name: self._strongest(name, of.layer) for name, of in held.items()}
            collect_heads(shards, blocks, held, where=self.config.where, limit=HEAD_QUESTIONS)

    def tables(
        self, parts: Sequence[Labelled], found: Analysed, samples: Sequence[Sample], model: str
    ) -> dict[str, pd.DataFrame]:
        """The tables of the evidence asked for, by name, all datasets together."""
        frames: dict[str, list[pd.DataFrame]] = {}
        for part in parts:
            given = self._given(part, found.readings[part.dataset], samples)
            made = evidence_tables(self.config.evidence, given, self._settings(model))
            for name, table in made.items():
                frames.setdefault(name, []).append(table)
        tables = {name: pd.concat(of, ignore_index=True) for name, of in frames.items()}
        if "heads" in tables and len(parts) > 1:
            drawn = {"seed": self.config.seed, "resamples": self.config.resamples}
            tables["heads_agreement"] = heads_agreement(tables["heads"], **drawn)
        return tables

    def _given(self, part: Labelled, readings: Readings, samples: Sequence[Sample]) -> Given:
        learnt = {"awareness", "answer-only"} & set(self.config.evidence)
        names = [n for n in CAUGHT if learnt and self.store.has(shard_name(n, 0))]
        return Given(
            dataset=part.dataset,
            readings=readings,
            states={n: load_states(self.store, n, part.ids, self.shards) for n in names},
            known=part.known,
            abstained=self._abstained(part.dataset, samples),
            saliency=self._rows("saliency", part.dataset),
            heads=self._rows("heads", part.dataset),
        )

    def _abstained(self, dataset: str, samples: Sequence[Sample]) -> Readings | None:
        """What the probes say of the answers that are neither right nor wrong."""
        own = [s for s in samples if s.question.dataset == dataset and s.verdict == "abstain"]
        ids = [s.id for s in own if s.exact_answer and s.exact_question]
        if not ids or "boundary" not in self.config.evidence:
            return None
        names = ("clean", "knockout")
        states = {name: load_states(self.store, name, ids, self.shards) for name in names}
        return read_unseen(self._probes(dataset), states, ids=ids)

    def _held_out(self, part: Labelled, found: Analysed) -> HeldOut:
        fold = {id: int(f) for id, f in zip(part.ids, part.fold, strict=True)}
        layer = found.layer[part.dataset]
        return HeldOut(probes=self._probes(part.dataset), fold=fold, layer=layer)

    def _strongest(self, dataset: str, layer: int) -> list[int]:
        """The blocks up to `layer` through which the probe's loss is most sensitive to E_Q."""
        rows = self._rows("saliency", dataset)
        assert rows is not None
        own = rows.loc[(rows["loss"] == "probe") & (rows["source"] == "exact")]
        wide = own.pivot(index="id", columns="layer", values="saliency").to_numpy()[:, :layer]
        strongest = np.argsort(-wide.mean(axis=0), kind="stable")[:HEAD_BLOCKS]
        return sorted(int(block) + 1 for block in strongest)

    def _rows(self, piece: str, dataset: str) -> pd.DataFrame | None:
        """The rows of one piece of evidence of a dataset; None where it was not read."""
        names = [evidence_name(piece, number) for number in range(self.shards)]
        if not all(self.store.has(name) for name in names):
            return None
        rows = pd.concat([pd.read_parquet(self.store.file(name)) for name in names])
        return cast(pd.DataFrame, rows.loc[rows["dataset"] == dataset]).reset_index(drop=True)

    def _probes(self, dataset: str) -> ProbeSet:
        return ProbeSet.load(self.store.file(f"probes/{dataset}"))

    def _settings(self, model: str) -> Settings:
        c = self.config
        return Settings(
            model=model, grouping=c.grouping, layers=c.layers, unit=unit_of(c.delta), C=c.C,
            balance=c.balance, seed=c.seed, resamples=c.resamples,
        )  # fmt: skip
