"""The other evidence of a run: read from the model, piece by piece, then made into tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN, KNOCKOUT
from anchorscope.evidence.pieces import (
    Piece,
    PieceInputs,
    Tables,
    evidence_tables,
    passes_of_pieces,
    pieces_of,
)
from anchorscope.evidence.shards import HeldOut, Shards, evidence_name, stored_rows
from anchorscope.pathways.two_pathways.finding import choose_layer
from anchorscope.pipeline.prepare import Shard, prompt_maker
from anchorscope.pipeline.shard import ask_and_read
from anchorscope.pipeline.stages import Run
from anchorscope.probes.labelled import Labelled
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.probes.readings import Readings, read_abstained
from anchorscope.records import Sample
from anchorscope.run_folder.states import StateBank, StoredStates, load_states, shard_name


def read_evidence(
    run: Run, lease: Lease, shards: Sequence[Shard], samples: Sequence[Sample]
) -> None:
    """What needs no probe: further passes over the same answers, and what pieces read."""
    if passes := passes_of_pieces(run.config):
        ask_and_read(run, lease, shards, passes, name="further passes")
    read_pieces(run, lease, shards, samples, pieces_of(run.config))


def read_pieces(
    run: Run,
    lease: Lease,
    shards: Sequence[Shard],
    samples: Sequence[Sample],
    pieces: Sequence[Piece],
) -> None:
    """What these pieces read of the model before there are probes."""
    with run.stage("evidence"):
        prompts, through = prompt_maker(run, lease), _shards(run, lease, shards, samples)
        for piece in pieces:
            if piece.read is not None:
                piece.read(through, prompts)


def read_evidence_with_probes(
    run: Run,
    lease: Lease,
    shards: Sequence[Shard],
    samples: Sequence[Sample],
    answers: Sequence[Labelled],
    readings: Mapping[str, Readings],
) -> None:
    """What is read by the probes that never saw the question: saliency, heads."""
    with run.stage("evidence"):
        held_out = {of.dataset: _held_out(run, of, readings[of.dataset]) for of in answers}
        through = _shards(run, lease, shards, samples)
        for piece in pieces_of(run.config):
            if piece.read_with_probes is not None:
                piece.read_with_probes(through, held_out, run.config)


def tables_of_evidence(
    run: Run,
    answers: Sequence[Labelled],
    readings: Mapping[str, Readings],
    samples: Sequence[Sample],
    *,
    shards: int,
) -> Tables:
    """The tables of the evidence asked for, by name, all datasets together."""
    with run.stage("evidence tables"):
        inputs = [_inputs(run, of, readings[of.dataset], samples, shards) for of in answers]
        return evidence_tables(run.config.evidence, inputs)


def _inputs(
    run: Run, answers: Labelled, readings: Readings, samples: Sequence[Sample], shards: int
) -> PieceInputs:
    pieces = pieces_of(run.config)
    loads, rows = ({n for p in pieces for n in getattr(p, of)} for of in ("loads", "rows"))
    states = [n for n in sorted(loads) if run.store.has(shard_name(n, 0))]
    bank = StateBank(run.store.path, list(answers.ids))
    rows = [n for n in rows if all(run.store.has(evidence_name(n, i)) for i in range(shards))]
    return PieceInputs(
        model=run.model_name,
        dataset=answers.dataset,
        config=run.config,
        readings=readings,
        covariates=answers.covariates,
        states={name: StoredStates(bank, name) for name in states},
        abstained=_abstained(run, answers.dataset, samples, shards),
        rows={name: stored_rows(run.store, name, answers.dataset, shards=shards) for name in rows},
    )


def _abstained(run: Run, dataset: str, samples: Sequence[Sample], shards: int) -> Readings | None:
    """What the probes say of the answers that are neither right nor wrong."""
    own = [s for s in samples if s.question.dataset == dataset and s.verdict == "abstain"]
    own = [s for s in own if s.exact_answer and s.exact_question]
    ids = [s.id for s in own]
    if not ids or not any(piece.needs_abstained for piece in pieces_of(run.config)):
        return None
    names = (CLEAN.name, KNOCKOUT.name)
    states = {name: load_states(run.store, name, ids, shards) for name in names}
    entity = np.array([s.question.entity for s in own])
    return read_abstained(_probes(run, dataset), states, ids=ids, entity=entity)


def _held_out(run: Run, answers: Labelled, readings: Readings) -> HeldOut:
    fold = {id: int(f) for id, f in zip(answers.ids, answers.fold, strict=True)}
    probes = _probes(run, answers.dataset)
    return HeldOut(probes=probes, fold=fold, layer=choose_layer(readings))


def _shards(run: Run, lease: Lease, shards: Sequence[Shard], samples: Sequence[Sample]) -> Shards:
    """The shards as evidence goes through them."""
    by_id = {sample.id: sample for sample in samples}
    of = [[by_id[p.question.id] for p in shard.prompts] for shard in shards]
    return Shards(lease, run.store, of, seed=run.config.seed, progress=run.progress)


def _probes(run: Run, dataset: str) -> ProbeSet:
    return ProbeSet.load(run.store.file(f"probes/{dataset}"))
