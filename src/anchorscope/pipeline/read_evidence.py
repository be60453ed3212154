"""Read further evidence of the model: pieces that need no probe, and those that read with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from anchorscope.evidence.pieces import passes_of_pieces, piece_of
from anchorscope.evidence.shards import HeldOut, Shards
from anchorscope.pathways.band import best_layer
from anchorscope.pipeline.prepare import prompt_maker
from anchorscope.pipeline.read_states import Reader, Task, Worker, read_states
from anchorscope.pipeline.request import Run
from anchorscope.probes.labelled import labelled
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.probes.readings import Readings
from anchorscope.run_folder.samples import answers_name, stored_answers


def read_evidence(run: Run, reader: Reader) -> None:
    """Read what needs no probe: further passes over the same answers, and what pieces read."""
    if passes := passes_of_pieces(run.config):
        read_states(run, reader, passes, name="further passes")
    read_pieces(run, reader, run.config.evidence)


def read_pieces(run: Run, reader: Reader, names: Sequence[str]) -> None:
    """Read what these pieces need of the model before there are probes.

    Donors, and the tokens in front of the questions, come from all answers of a dataset.
    """
    pieces = [name for name in names if piece_of(name).read is not None]
    if pieces and not all(run.store.has(answers_name(number)) for number in range(reader.count)):
        run.progress.note("further evidence waits for the answers of the other ranks")
        return
    for name in pieces:
        _read_stages(run, reader, name, layers=None)


def read_with_probes(run: Run, reader: Reader, readings: Mapping[str, Readings]) -> None:
    """Read with the probes that never saw the question (saliency, heads); `readings` by dataset."""
    layers = {dataset: best_layer(own) for dataset, own in readings.items()}
    for name in run.config.evidence:
        if piece_of(name).read_with_probes is not None:
            _read_stages(run, reader, name, layers=layers)


def _read_stages(run: Run, reader: Reader, piece: str, *, layers: Mapping[str, int] | None) -> None:
    numbers = [shard.number for shard in reader.shards]
    with run.stage("evidence"):
        for stage in piece_of(piece).stages:
            run.progress.start(stage, sum(map(len, reader.shards)))
            run.store.send_rest()
            tasks = [
                Task(
                    f"Shard {number} ({stage})",
                    partial(
                        _read_stage,
                        piece_name=piece,
                        stage=stage,
                        number=number,
                        shards=reader.count,
                        layers=layers,
                    ),
                )
                for number in numbers
            ]
            for task, _ in reader.map(tasks):
                run.progress.advance(len(reader.shards[task]))


def _read_stage(
    worker: Worker,
    *,
    piece_name: str,
    stage: str,
    number: int,  # of the shard
    shards: int,  # of the run
    layers: Mapping[str, int] | None,  # by dataset, where held-out probes read
) -> None:
    """Read one stage of a piece of evidence on one shard."""
    run, piece = worker.run, piece_of(piece_name)
    if worker.evidence is None:
        run.store.fetch()
        samples = [stored_answers(run.store, each) for each in range(shards)]
        worker.evidence = Shards(worker.lease, run.store, samples, seed=run.config.seed)
    shard = replace(worker.evidence, only=(stage, number))
    if layers is None:
        assert piece.read is not None
        piece.read(shard, prompt_maker(run, worker.lease))
    else:
        assert piece.read_with_probes is not None
        held_out = {name: _held_out(run, shard, name, layer) for name, layer in layers.items()}
        piece.read_with_probes(shard, held_out, run.config)


def _held_out(run: Run, shards: Shards, dataset: str, layer: int) -> HeldOut:
    """The stored probes of a layer, as they hold out each question of a dataset."""
    answers = labelled(shards.of_dataset(dataset), dataset, run.config)
    fold = {id: int(f) for id, f in zip(answers.ids, answers.fold, strict=True)}
    probes = ProbeSet.load(run.store.file(f"probes/{dataset}"))
    return HeldOut(probes=probes, fold=fold, layer=layer)
