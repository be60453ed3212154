"""The other evidence of a run: read from the model, piece by piece, then made into tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN, KNOCKOUT
from anchorscope.evidence.pieces import (
    PieceInputs,
    Tables,
    evidence_tables,
    passes_of_pieces,
    piece_of,
    piece_parts,
    pieces_of,
)
from anchorscope.evidence.shards import HeldOut, Part, Shards, evidence_name, stored_rows
from anchorscope.pathways.band import best_layer
from anchorscope.pipeline.prepare import Shard, prompt_maker
from anchorscope.pipeline.shard import ask_and_read, stored_answers
from anchorscope.pipeline.stages import Run
from anchorscope.probes.labelled import Labelled, labelled
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
    read_pieces(run, lease, shards, samples, run.config.evidence)


def read_pieces(
    run: Run,
    lease: Lease,
    shards: Sequence[Shard],
    samples: Sequence[Sample],
    names: Sequence[str],
    *,
    part: Part | None = None,
) -> None:
    """What these pieces read of the model before there are probes; a `part` of the shards alone."""
    with run.stage("evidence"):
        prompts, through = prompt_maker(run, lease), _shards(run, lease, shards, samples)
        for name in names:
            read = piece_of(name).read
            if read is not None:
                read(_spread(run, replace(through, part=part), name), prompts)


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
        layers = {of.dataset: best_layer(readings[of.dataset]) for of in answers}
        held_out = {of.dataset: _held_out(run, of, layers[of.dataset]) for of in answers}
        through = _shards(run, lease, shards, samples)
        for name in run.config.evidence:
            read = piece_of(name).read_with_probes
            if read is not None:
                read(_spread(run, through, name, layers), held_out, run.config)


def shards_on_disk(run: Run, lease: Lease, *, count: int) -> Shards:
    """All shards of a run whose answers are on disk, for a worker that reads evidence."""
    samples = [stored_answers(run.store, number) for number in range(count)]
    return Shards(lease, run.store, samples, seed=run.config.seed)


def held_out_of(run: Run, through: Shards, layers: Mapping[str, int]) -> dict[str, HeldOut]:
    """The stored probes at these layers, by dataset, as they hold out each question."""
    samples = [sample for shard in through.samples for sample in shard]
    answers = [labelled(samples, dataset, run.config) for dataset in layers]
    return {of.dataset: _held_out(run, of, layers[of.dataset]) for of in answers}


def read_part(run: Run, through: Shards, name: str, held_out: Mapping[str, HeldOut] | None) -> None:
    """What a piece reads of its `through.part`, with probes or before there are any."""
    piece = piece_of(name)
    if held_out is None:
        assert piece.read is not None
        piece.read(through, prompt_maker(run, through.lease))
    else:
        assert piece.read_with_probes is not None
        piece.read_with_probes(through, held_out, run.config)


def _spread(
    run: Run, through: Shards, name: str, layers: Mapping[str, int] | None = None
) -> Shards:
    """The shards as a piece goes through them: by workers where the run has them."""
    if run.hands is None:
        return through
    sizes = [len(shard) for shard in through.samples]
    return replace(through, elsewhere=partial(run.hands.read_piece, run, name, layers, sizes))


def tables_of_evidence(
    run: Run,
    answers: Sequence[Labelled],
    readings: Mapping[str, Readings],
    samples: Sequence[Sample],
    *,
    shards: int,
    done: Mapping[str, Sequence[Tables]] | None = None,
) -> Tables:
    """The tables of the evidence asked for, by name, all datasets together.

    `done` is what the parts gave of some datasets already.
    """
    with run.stage("evidence tables"):
        there = done or {}
        inputs = [
            _inputs(run, of, readings[of.dataset], samples, shards, done=of.dataset in there)
            for of in answers
        ]
        return evidence_tables(run.config.evidence, inputs, done=there)


def evidence_parts(
    run: Run,
    answers: Labelled,
    readings: Readings,
    samples: Sequence[Sample],
    *,
    shards: int,
) -> list[Callable[[], Tables]]:
    """The parts of one dataset's evidence, whose states are in the first `shards`."""
    return piece_parts(run.config.evidence, _inputs(run, answers, readings, samples, shards))


def _inputs(
    run: Run,
    answers: Labelled,
    readings: Readings,
    samples: Sequence[Sample],
    shards: int,
    *,
    done: bool = False,
) -> PieceInputs:
    """What the pieces see of a dataset; less of it where all their parts are `done`."""
    pieces = pieces_of(run.config)
    left = [piece for piece in pieces if piece.tables or not done]
    abstained = any(piece.needs_abstained for piece in left)
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
        abstained=_abstained(run, answers.dataset, samples, shards) if abstained else None,
        rows={name: stored_rows(run.store, name, answers.dataset, shards=shards) for name in rows},
    )


def _abstained(run: Run, dataset: str, samples: Sequence[Sample], shards: int) -> Readings | None:
    """What the probes say of the answers that are neither right nor wrong."""
    own = [s for s in samples if s.question.dataset == dataset and s.verdict == "abstain"]
    own = [s for s in own if s.exact_answer and s.exact_question]
    ids = [s.id for s in own]
    if not ids:
        return None
    names = (CLEAN.name, KNOCKOUT.name)
    states = {name: load_states(run.store, name, ids, shards) for name in names}
    entity = np.array([s.question.entity for s in own])
    return read_abstained(_probes(run, dataset), states, ids=ids, entity=entity)


def _held_out(run: Run, answers: Labelled, layer: int) -> HeldOut:
    fold = {id: int(f) for id, f in zip(answers.ids, answers.fold, strict=True)}
    probes = _probes(run, answers.dataset)
    return HeldOut(probes=probes, fold=fold, layer=layer)


def _shards(run: Run, lease: Lease, shards: Sequence[Shard], samples: Sequence[Sample]) -> Shards:
    """The shards as evidence goes through them."""
    by_id = {sample.id: sample for sample in samples}
    of = [[by_id[p.question.id] for p in shard.prompts] for shard in shards]
    return Shards(lease, run.store, of, seed=run.config.seed, progress=run.progress)


def _probes(run: Run, dataset: str) -> ProbeSet:
    return ProbeSet.load(run.store.file(f"probes/{dataset}"))
