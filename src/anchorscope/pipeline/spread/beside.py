"""A dataset analysed while the model reads the next one, where the model is on a GPU.

A thread for each stage of the analysis hands its parts to other processes and waits for them, so
that one dataset is counted while a GPU makes the fits of another. The threads save the probes and
write nothing else. The numbers are the same either way, since no part knows of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from typing import Any, Literal

from anchorscope import ranks
from anchorscope.config import Config
from anchorscope.engine.lease import Lease
from anchorscope.evidence.pieces import Tables, passes_of_pieces, piece_of, pieces_of, probed_of
from anchorscope.parallel import default_workers, in_parallel, stop_workers
from anchorscope.pathways.parts import Refits
from anchorscope.pipeline.analyse import pathways_of, readings_of, refits_before
from anchorscope.pipeline.evidence import parts_of_evidence
from anchorscope.pipeline.shard import OnDataset
from anchorscope.pipeline.spread.spent import Spent, shared_out
from anchorscope.pipeline.stages import Run
from anchorscope.probes.at_once import stop_fits
from anchorscope.probes.labelled import labelled
from anchorscope.probes.readings import Readings
from anchorscope.progress import Quiet
from anchorscope.records import Sample

# On a CPU the model has all cores to itself. Tests set another value.
WHERE: Literal["gpu", "everywhere", "nowhere"] = "gpu"
# Who makes the fits where the model is on a GPU. "gpu" has been tried with torch on a CPU alone, so
# that the cores make them until it is proved and timed where it would run.
FITS: Literal["cores", "gpu"] = "cores"
STAGES = ("probes", "pathways", "evidence tables")
_SPARED = 2  # cores for the threads that feed the GPU and write files
_LEAST = 2  # processes: fewer would not be worth it, and one alone is this one


@dataclass
class Analysed:
    """What is known of some datasets already, by name."""

    readings: dict[str, Readings] = field(default_factory=dict)
    pathways: dict[str, Tables] = field(default_factory=dict)
    evidence: dict[str, list[Tables]] = field(default_factory=dict)


class Beside:
    """The threads, for as long as the `with` block reads; `done` is what they have come to."""

    def __init__(self, run: Run, lease: Lease) -> None:
        self.done = Analysed()
        self._run, self._asked = run, _asked(run, lease)
        self._workers = max(_LEAST, default_workers() - _SPARED)
        self._lanes = {stage: ThreadPoolExecutor(1, stage) for stage in STAGES}
        self._steps: list[Future[None]] = []
        self._spent: list[Spent] = []
        self._context = copy_context()  # who makes the fits

    @property
    def on_dataset(self) -> OnDataset | None:
        """Takes up a dataset; None where each is to wait until all are read."""
        return self._begin if self._asked else None

    def __enter__(self) -> Beside:
        if self._asked:
            start = partial(_start_workers, self._run.config, self._workers)
            self._steps.append(self._lanes["probes"].submit(start))
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        read = time.monotonic()
        try:
            if kind is None:
                self._finish()
        finally:
            self._end()
            for stage, (beside, late) in shared_out(self._spent, read).items():
                self._run.add_to(stage, seconds=late, beside=beside)

    def _begin(self, samples: Sequence[Sample], *, shards: int) -> None:
        """Hands the steps of a dataset to the threads, behind those of the ones before it."""
        run, done = replace(self._run, progress=Quiet()), self.done
        name, workers = samples[0].question.dataset, self._workers
        answers = cache(partial(labelled, samples, name, run.config))
        refits: dict[str, Refits] = {}

        def probes() -> None:
            passes = probed_of(run.config)
            done.readings |= readings_of(run, [answers()], passes=passes, workers=workers)

        def before() -> None:
            refits[name] = refits_before(run, answers())

        def pathways() -> None:
            how: Any = {"refits": refits, "workers": workers}
            done.pathways |= pathways_of(run, [answers()], done.readings, **how)

        def evidence() -> None:
            read = done.readings[name]
            done.evidence[name] = parts_of_evidence(
                run, answers(), read, samples, shards=shards, workers=workers
            )

        first = self._hand("probes", probes, self._steps[0])
        self._hand("pathways", before, self._steps[0])
        self._hand("pathways", pathways, first)
        self._hand("evidence tables", evidence, first)

    def _hand(self, stage: str, work: Callable[[], None], after: Future[None]) -> Future[None]:
        """The step, done in its stage's thread once the one `after` which it comes is done."""

        def do() -> None:
            after.result()
            begun = time.monotonic()
            try:
                self._context.copy().run(work)
            finally:
                self._spent.append(Spent(stage, begun, time.monotonic()))

        self._steps.append(self._lanes[stage].submit(do))
        return self._steps[-1]

    def _finish(self) -> None:
        """Waits for what is not done yet, with the cores that the model had."""
        left = [step for step in self._steps if not step.done()]
        self._run.progress.start("analysis", len(left))
        for step in self._steps:
            while wait([step], 0.2).not_done:  # so that Ctrl-C is heard
                pass
            step.result()
            self._run.progress.advance(step in left)

    def _end(self) -> None:
        """Nothing goes on, whatever a step has come to."""
        for step in self._steps:
            step.cancel()
        while wait(self._steps, 1).not_done:
            stop_fits()
            stop_workers()  # again where the step had not come to them yet
        for lane in self._lanes.values():
            lane.shutdown()


def fit_device(lease: Lease) -> str | None:
    """The GPU that makes the fits of many layers at once; None: the cores make them."""
    device = lease.model.device
    return str(device) if FITS == "gpu" and device.type == "cuda" else None


def _start_workers(config: Config, count: int) -> None:
    """Starts the processes, which import what they need while there is no dataset for them yet."""
    pieces = [name.replace("-", "_") for name in config.evidence if piece_of(name).parts]
    names = ["pathways.parts", *(f"evidence.{name}" for name in pieces)]
    modules = [f"anchorscope.{name}" for name in names]
    in_parallel(lambda _: list(map(import_module, modules)) and None, range(count), workers=count)


def _asked(run: Run, lease: Lease) -> bool:
    """Whether datasets are whole one by one, and cores are free while the model reads.

    Workers take shards of several datasets at a time; evidence that is read before there are
    probes goes through all datasets once more.
    """
    here = ranks.count() == 1 and run.hands is None
    once = not passes_of_pieces(run.config) and not any(p.read for p in pieces_of(run.config))
    idle = lease.model.device.type != "cpu" and default_workers() >= _LEAST + _SPARED
    return here and once and (WHERE == "everywhere" or (WHERE == "gpu" and idle))
