"""Load a dataset's inputs of the evidence tables from a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anchorscope.config import Config
from anchorscope.engine.interventions import CLEAN, KNOCKOUT, passes_of
from anchorscope.evidence.output import associated_table, output_table
from anchorscope.evidence.pieces import PieceInputs, Tables, pieces_of
from anchorscope.evidence.shards import evidence_name, stored_rows
from anchorscope.probes.folds import Labelled
from anchorscope.probes.probe_set import ProbeSet, Readings, read_abstained
from anchorscope.records import Sample
from anchorscope.run_folder.samples import load_outputs
from anchorscope.run_folder.states import StateBank, StoredStates
from anchorscope.run_folder.store import Store
from anchorscope.stats.intervals import Draws


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The samples of one dataset, and the labelled answers that probes learn from."""

    samples: Sequence[Sample]
    answers: Labelled
    shards: int  # of the run; the dataset's states are in some of them

    @property
    def name(self) -> str:
        return self.answers.dataset


def stored_inputs(
    store: Store, config: Config, dataset: Dataset, readings: Readings, *, model: str
) -> PieceInputs:
    """Load the inputs of the evidence tables of one dataset."""
    pieces, answers = pieces_of(config), dataset.answers
    bank = StateBank(store.path, list(answers.ids))
    states = sorted({name for piece in pieces for name in piece.loads if name in bank.names})
    shards = range(dataset.shards)
    rows = {
        name: stored_rows(store, name, dataset.name, shards)
        for piece in pieces
        for name in piece.rows
        if all(store.has(evidence_name(name, number)) for number in shards)
    }
    abstained = any(piece.needs_abstained for piece in pieces)
    return PieceInputs(
        model=model,
        dataset=dataset.name,
        config=config,
        readings=readings,
        covariates=answers.covariates,
        states={name: StoredStates(bank, name) for name in states},
        abstained=_read_abstained(store, dataset) if abstained else None,
        rows=rows,
    )


def _read_abstained(store: Store, dataset: Dataset) -> Readings | None:
    """The probes' readings of abstentions; None where there are none."""
    own = [s for s in dataset.samples if s.verdict == "abstain"]
    own = [s for s in own if s.exact_answer and s.exact_question]
    ids = [s.id for s in own]
    if not ids:
        return None
    names = (CLEAN.name, KNOCKOUT.name)
    bank = StateBank(store.path, ids)
    states = {name: bank.all_layers(name) for name in names}
    entity = np.array([s.question.entity for s in own])
    probes = ProbeSet.load(store.file(f"probes/{dataset.name}"))
    return read_abstained(probes, states, ids=ids, entity=entity)


def stored_output_tables(
    store: Store, config: Config, dataset: Dataset, tables: Tables, *, model: str
) -> Tables:
    """Tabulate the model's own output under every pass, by strict mode's pathways.

    Empty where the run has no outputs: states that were extracted elsewhere come without them.
    """
    passes = [cut.name for cut in passes_of(config) if cut.has_output]
    outputs = load_outputs(store, dataset.samples, passes, shards=dataset.shards)
    if set(outputs["pass"]) <= {CLEAN.name}:
        return {}
    layer = int(tables["findings"]["layer"].iloc[0])
    rows = tables["pathways"]
    groups = rows.loc[(rows["mode"] == "strict") & (rows["layer"] == layer)]
    entity = dict(zip(dataset.answers.ids, dataset.answers.entities, strict=True))
    groups = groups.assign(entity=groups["id"].map(entity))
    names = {"model": model, "dataset": dataset.name}
    draws = Draws(seed=config.seed, resamples=config.resamples)
    return {
        "output": output_table(outputs, groups, **names, layer=layer, draws=draws),
        "associated": associated_table(outputs, groups, **names),
    }
