"""A worker: it holds the model and does one task after another, writing its files itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from anchorscope.answers.generate import Answerer
from anchorscope.engine.halvings import HALVED
from anchorscope.engine.lease import Lease
from anchorscope.evidence.shards import HeldOut, Part, PartDone, Shards
from anchorscope.models import Model
from anchorscope.models.parts import find_parts
from anchorscope.pipeline.evidence import held_out_of, read_part, shards_on_disk
from anchorscope.pipeline.model import load
from anchorscope.pipeline.prepare import prepare
from anchorscope.pipeline.shard import ShardReader
from anchorscope.pipeline.spread.machine import set_threads
from anchorscope.pipeline.spread.proof import prove
from anchorscope.pipeline.spread.tasks import (
    Fed,
    Job,
    Outline,
    Prepare,
    Prepared,
    Read,
    ReadPiece,
    Task,
)
from anchorscope.pipeline.stages import Run
from anchorscope.run_folder.remote import remote_of
from anchorscope.run_folder.store import Store

_FACTS = ("name", "source", "revision", "tokenizer", "why", "adapter")


class Worker:
    """The model of a run, loaded once, and what its tasks share."""

    def __init__(self, job: Job) -> None:
        remote = None if job.url is None else remote_of(job.url)
        folder = Path(job.folder) if remote is None else remote.local
        store = Store(folder, info=dict(job.info), remote=remote)
        self.run = Run(store=store, config=job.config, sets=job.sets)
        set_threads(job.config, job.info)
        # The fixed prompt, below, tells whether this process computes what the first one did.
        self.lease = Lease(load(self.run, None, joins=True))
        self.lease.__enter__()
        prove(store, self.lease)
        self._reader: ShardReader | None = None
        self._through: Shards | None = None
        self._held_out: dict[tuple[tuple[str, int], ...], dict[str, HeldOut]] = {}

    def do(self, task: Task) -> Any:
        """What a task gives: `Prepared`, or `Fed` for one that reads."""
        if isinstance(task, Prepare):
            return self._prepare()
        return self._read(task) if isinstance(task, Read) else self._read_piece(task)

    def _prepare(self) -> Prepared:
        shards = prepare(self.run, self.lease)
        outline = outline_of(self.lease.model)
        return Prepared(info=self.run.store.info, shards=shards, outline=outline)

    def _read(self, task: Read) -> Fed:
        reader = self._reader_for(task)
        reader.exact_question = task.exact_question
        before, halved = reader.tokens, len(HALVED)
        with reader:  # its files are there when the task is done
            reader.samples(task.shard)
        return Fed(reader.tokens - before, tuple(HALVED[halved:]))

    def _reader_for(self, task: Read) -> ShardReader:
        """The last task's reader where it fits: it has read what stands before the questions."""
        last, config, own = self._reader, self.run.config, self.run.store
        folder = own.path / task.inside
        if last is None or (last.store.path, last.passes) != (folder, task.passes):
            last = self._reader = ShardReader(
                lease=self.lease,
                store=own if folder == own.path else Store(folder, info=own.info),
                answerer=Answerer(self.lease.model, max_tokens=config.max_tokens),
                passes=task.passes,
                seed=config.seed,
            )
        return last

    def _read_piece(self, task: ReadPiece) -> Fed:
        halved = len(HALVED)
        if self._through is None:
            self.run.store.fetch()
            self._through = shards_on_disk(self.run, self.lease, count=task.shards)
        part = Part(stage=task.stage, numbers=frozenset({task.number}))
        through = replace(self._through, part=part)
        with suppress(PartDone):
            read_part(self.run, through, task.piece, self._probes(task.layers))
        return Fed(0, tuple(HALVED[halved:]))

    def _probes(self, layers: Mapping[str, int] | None) -> dict[str, HeldOut] | None:
        """The held-out probes at these layers, by dataset."""
        if layers is None:
            return None
        assert self._through is not None
        key = tuple(sorted(layers.items()))
        if key not in self._held_out:
            self._held_out[key] = held_out_of(self.run, self._through, layers)
        return self._held_out[key]


def outline_of(model: Model) -> Outline:
    """The model without its weights."""
    facts = {name: getattr(model, name) for name in _FACTS}
    return Outline(facts=facts, kind=type(model.lm), config=model.lm.config)


def model_of(outline: Outline) -> Model:
    """A model of that shape that computes nothing, for the process that has workers."""
    with torch.device("meta"):
        lm = outline.kind(outline.config)
    return Model(lm=lm.eval(), parts=find_parts(lm), **outline.facts)
