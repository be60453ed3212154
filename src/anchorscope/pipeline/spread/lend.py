"""The model of a run, or workers that have it, for as long as the run needs one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from anchorscope.engine.lease import Lease
from anchorscope.pipeline.model import load
from anchorscope.pipeline.prepare import Shard, prepare
from anchorscope.pipeline.spread.hands import Hands, Helper
from anchorscope.pipeline.spread.local import Process
from anchorscope.pipeline.spread.machine import as_begun, environment_of
from anchorscope.pipeline.spread.tasks import Job
from anchorscope.pipeline.spread.worker import model_of
from anchorscope.pipeline.stages import Run

_OWNERS = ("identity", "finished", "format")  # of run.json: no worker has a say in them


class Lent(NamedTuple):
    """A run with what computes its shards."""

    run: Run
    lease: Lease  # of a model without weights where workers have the real one
    shards: list[Shard]


@contextmanager
def lent(run: Run, model: Any) -> Iterator[Lent]:
    """The run's shards and who computes them: this process, or the workers it asks for."""
    if run.config.workers is None and run.config.ray is None:
        with as_begun(run.config, run.store.info), Lease(load(run, model)) as lease:
            yield Lent(run, lease, prepare(run, lease))
        return
    hands = _hands(run)
    try:
        prepared = hands.prepare()
        kept = {name: of for name, of in prepared.info.items() if name not in _OWNERS}
        run.store.save_info(kept)
        facts = kept["model"]
        run.progress.note(f"{facts['name']}: {facts['why']}")
        run.progress.note(f"prompts as {facts['prompt']}: {facts['prompt_why']}")
        run = replace(run, hands=hands)
        with Lease(model_of(prepared.outline)) as lease:
            yield Lent(run, lease, prepared.shards)
    finally:
        hands.end()


def _hands(run: Run) -> Hands:
    if run.config.ray is not None:
        from anchorscope.pipeline.spread.under_ray import ray_hands

        return ray_hands(run, lambda: job_of(run))
    return _local_hands(run)


def _local_hands(run: Run) -> Hands:
    """Processes of this machine, all of them started at once."""
    count = run.config.workers or 1
    environments = [environment_of(run.config, place, count) for place in range(count)]

    def start(place: int) -> Helper:
        def begun(process: int) -> None:
            run.progress.note(f"worker {place + 1} of {count} is process {process}")

        return Process(lambda: job_of(run), environments[place], begun)

    return Hands(run, start, count)


def job_of(run: Run) -> Job:
    """What a worker must know, as things stand now."""
    store = run.store
    return Job(
        folder=str(store.path.absolute()),
        url=None if store.remote is None else store.remote.url,
        config=run.config,
        sets=run.sets,
        info=store.info,
    )
