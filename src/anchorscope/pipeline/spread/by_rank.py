"""One rank of a batch system's array: its own shards, and nothing that needs the others'.

Ranks may start at the same time, in any order, on any machine that sees the folder. The first one
describes the model and settles the prompts; the others go by what it wrote.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from anchorscope.config import Config
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import knockout_of, passes_of
from anchorscope.evidence.pieces import passes_of_pieces, piece_of
from anchorscope.evidence.shards import Part
from anchorscope.pipeline.ablate import read_variants
from anchorscope.pipeline.evidence import read_pieces
from anchorscope.pipeline.model import load
from anchorscope.pipeline.prepare import Shard, prepare
from anchorscope.pipeline.shard import answers_name, ask_and_read, stored_answers
from anchorscope.pipeline.spread.machine import as_begun
from anchorscope.pipeline.spread.proof import prove
from anchorscope.pipeline.stages import Run
from anchorscope.run_folder.owner import Busy
from anchorscope.run_folder.store import Store

COLLECTED = ("detectors",)  # the pieces of a folder for detectors
_PAUSE = 0.5  # seconds between two looks at run.json


def read_of_rank(run: Run, model: Any) -> None:
    """The states of every shard whose number, divided by the world size, leaves the rank.

    Evidence that needs no probe is read too where all answers are there: donors and what stands
    before the questions come from all of a dataset.
    """
    model = _describe(run, model)
    run = replace(run, store=Store(run.store.path, info=run.store.info, remote=run.store.remote))
    with as_begun(run.config, run.store.info), Lease(load(run, model)) as lease:
        prove(run.store, lease)
        shards = prepare(run, lease)
        own = [shard for shard in shards if _is_own(shard.number, run.config)]
        collected = "only" in run.store.info["identity"]
        passes = collected_passes(run.config) if collected else passes_of(run.config)
        ask_and_read(run, lease, own, passes)
        if not collected:
            read_variants(run, lease, own)
            if more := passes_of_pieces(run.config):
                ask_and_read(run, lease, own, more, name="further passes")
        _read_evidence(run, lease, shards, COLLECTED if collected else run.config.evidence)


def collected_passes(config: Config) -> list[Intervention]:
    """The passes of a folder for detectors."""
    return [
        knockout_of(config),
        *(cut for name in COLLECTED for cut in piece_of(name).passes(config)),
    ]


def _describe(run: Run, model: Any) -> Any:
    """The model, loaded if this rank had to say in run.json how shards are cut and asked."""
    while not _described(run.store.info):
        try:
            with run.store.owned():
                if not _described(run.store.info):
                    with as_begun(run.config, run.store.info):
                        model = load(run, model)
                        with Lease(model) as lease:
                            prepare(run, lease)
        except Busy:
            time.sleep(_PAUSE)
    return model


def _described(info: dict[str, Any]) -> bool:
    return "shard" in info and "prompt" in info.get("model", {})


def _is_own(number: int, config: Config) -> bool:
    assert config.world_size is not None
    return number % config.world_size == config.rank


def _read_evidence(run: Run, lease: Lease, shards: Sequence[Shard], names: Sequence[str]) -> None:
    if all(run.store.has(answers_name(shard.number)) for shard in shards):
        samples = [s for shard in shards for s in stored_answers(run.store, shard.number)]
        own = frozenset(n for n in range(len(shards)) if _is_own(n, run.config))
        read_pieces(run, lease, shards, samples, names, part=Part(numbers=own))
    elif any(piece_of(name).read is not None for name in names):
        run.progress.note("further evidence waits for the answers of the other ranks")
