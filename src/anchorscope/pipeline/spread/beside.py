"""A dataset analysed while the model reads the next one, where the model is on a GPU.

Two threads for each stage of the analysis, one that waits for what a GPU makes ahead of it and one
that hands its parts to other processes, so that one dataset is counted while another is fitted. The
threads save the probes and write nothing else. The numbers are the same either way, since no part
knows of the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch

from anchorscope.config import Config
from anchorscope.engine.lease import Lease
from anchorscope.evidence.pieces import Tables, passes_of_pieces, piece_of, pieces_of, probed_of
from anchorscope.parallel import default_workers, in_parallel, stop_workers
from anchorscope.pipeline.analyse import layer_parts, pathways_of, readings_of, refits_before
from anchorscope.pipeline.evidence import evidence_parts
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
# Who makes the fits where the model is on a GPU.
FITS: Literal["cores", "gpu"] = "gpu"
STAGES = ("probes", "pathways", "evidence tables")
_LANES = (*STAGES, "fits of probes", "fits of pathways", "fits of evidence")
_FITS_SHARE = 3
_SPARED = 2  # cores for the threads that feed the GPU and write files
_LEAST = 2  # processes: fewer would not be worth it, and one alone is this one


@dataclass
class Analysed:
    """What is known of some datasets already, by name."""

    readings: dict[str, Readings] = field(default_factory=dict)
    pathways: dict[str, Tables] = field(default_factory=dict)
    evidence: dict[str, list[Tables]] = field(default_factory=dict)
    workers: int | None = None  # processes that are there, for whoever needs some; None: none are


class Beside:
    """The threads, for as long as the `with` block reads; `done` is what they have come to."""

    def __init__(self, run: Run, lease: Lease) -> None:
        self.run, self._asked, self.workers = run, _asked(run, lease), _count()
        self.done = Analysed(workers=self.workers if self._asked else None)
        self._lanes = {lane: ThreadPoolExecutor(1, lane) for lane in _LANES}
        self._steps: list[Future[None]] = []
        self._spent: list[Spent] = []
        self._context = copy_context()  # who makes the fits

    @property
    def on_dataset(self) -> OnDataset | None:
        """Takes up a dataset; None where each is to wait until all are read."""
        return self._begin if self._asked else None

    def __enter__(self) -> Beside:
        if self._asked:
            start = partial(_start_workers, self.run.config, self.workers)
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
                self.run.add_to(stage, seconds=late, beside=beside)

    def _begin(self, samples: Sequence[Sample], *, shards: int) -> None:
        """Hands the steps of a dataset to the threads, behind those of the ones before it."""
        first, ahead = self._steps[0], _Dataset(self, samples, shards)
        fits = self._hand("probes", ahead.fit_probes, first, lane="fits of probes")
        probes = self._hand("probes", ahead.probes, fits)
        fits = self._hand("pathways", ahead.refit, first, lane="fits of pathways")
        self._hand("pathways", ahead.pathways, probes, fits)
        fits = self._hand("evidence tables", ahead.fit_evidence, probes, lane="fits of evidence")
        self._hand("evidence tables", ahead.evidence, fits)

    def _hand(
        self, stage: str, work: Callable[[], None], *after: Future[None], lane: str = ""
    ) -> Future[None]:
        """The step, done in its thread once those `after` which it comes are done."""

        def do() -> None:
            for step in after:
                step.result()
            begun = time.monotonic()
            try:
                self._context.copy().run(work)
            finally:
                self._spent.append(Spent(stage, begun, time.monotonic()))

        self._steps.append(self._lanes[lane or stage].submit(do))
        return self._steps[-1]

    def _finish(self) -> None:
        """Waits for what is not done yet, with the cores that the model had."""
        left = [step for step in self._steps if not step.done()]
        if left:
            self.run.progress.start("analysis", len(left))
        for step in self._steps:
            while wait([step], 0.2).not_done:  # so that Ctrl-C is heard
                pass
            step.result()
            if step in left:
                self.run.progress.advance(1)

    def _end(self) -> None:
        """Nothing goes on, whatever a step has come to."""
        for step in self._steps:
            step.cancel()
        while wait(self._steps, 1).not_done:
            stop_fits()
            stop_workers()  # again where the step had not come to them yet
        for lane in self._lanes.values():
            lane.shutdown()


class _Dataset:
    """The steps of one dataset: what a GPU may make ahead of each stage, and the stage."""

    def __init__(self, of: Beside, samples: Sequence[Sample], shards: int) -> None:
        self.run, self.done, self.workers = replace(of.run, progress=Quiet()), of.done, of.workers
        self.samples, self.shards = samples, shards
        self.name = samples[0].question.dataset
        self.passes = probed_of(self.run.config)
        self.answers = cache(partial(labelled, samples, self.name, self.run.config))

    def fit_probes(self) -> None:
        self.layers = {self.name: layer_parts(self.run, self.answers(), self.passes)}

    def probes(self) -> None:
        how: Any = {"passes": self.passes, "parts": self.layers, "workers": self.workers}
        self.done.readings |= readings_of(self.run, [self.answers()], **how)

    def refit(self) -> None:
        self.refits = {self.name: refits_before(self.run, self.answers())}

    def pathways(self) -> None:
        how: Any = {"refits": self.refits, "workers": self.workers}
        readings = self.done.readings
        self.done.pathways |= pathways_of(self.run, [self.answers()], readings, **how)

    def fit_evidence(self) -> None:
        given = self.answers(), self.done.readings[self.name], self.samples
        self.parts = evidence_parts(self.run, *given, shards=self.shards)

    def evidence(self) -> None:
        how: Any = {"workers": self.workers}
        self.done.evidence[self.name] = in_parallel(lambda part: part(), self.parts, **how)


def fit_device(lease: Lease) -> str | None:
    """The GPU that makes the fits of many layers at once; None: the cores make them.

    A third of it at most may be weights. Decided by what lies on it for good, not by what is free
    just now: two runs should fit alike.
    """
    model = lease.model
    if FITS == "cores" or model.device.type != "cuda":
        return None
    weights = sum(of.numel() * of.element_size() for of in model.lm.parameters())
    total = torch.cuda.get_device_properties(model.device).total_memory
    return str(model.device) if _FITS_SHARE * weights <= total else None


@contextmanager
def started_early(run: Run, model: Any) -> Iterator[None]:
    """Starts the processes while a model is being loaded that will most likely be on a GPU.

    Where it is not, they were started for nothing; an error ends them, so that nobody waits.
    """
    begun = _likely(run, model)
    if begun:
        start = partial(_start_workers, run.config, _count())
        threading.Thread(target=_quietly, args=(start,), daemon=True).start()
    try:
        yield
    except BaseException:
        if begun:
            stop_workers()
        raise


def _likely(run: Run, model: Any) -> bool:
    """Whether datasets will be analysed beside the reading, as far as can be known by now."""
    named = model is None or isinstance(model, str | Path)
    gpu = run.config.device != "cpu" and torch.cuda.is_available() and _cores_left()
    alone = run.config.workers is None and run.config.ray is None
    here = WHERE == "everywhere" or (WHERE == "gpu" and gpu)
    return named and alone and _once(run) and here


def _quietly(start: Callable[[], None]) -> None:
    """Starts them; where that fails, or all are stopped, who needs them says what is wrong."""
    with suppress(Exception):
        start()


def _start_workers(config: Config, count: int) -> None:
    """Starts the processes, which import what they need while there is no dataset for them yet."""
    pieces = [name.replace("-", "_") for name in config.evidence if piece_of(name).parts]
    names = ["pathways.parts", *(f"evidence.{name}" for name in pieces), "show.figures"]
    # And what these import when they come to it.
    modules = [*(f"anchorscope.{name}" for name in names), "scipy.stats", "sklearn.cluster"]
    in_parallel(lambda _: list(map(import_module, modules)) and None, range(count), workers=count)


def _count() -> int:
    return max(_LEAST, default_workers() - _SPARED)


def _cores_left() -> bool:
    return default_workers() >= _LEAST + _SPARED


def _asked(run: Run, lease: Lease) -> bool:
    """Whether datasets are whole one by one, and cores are free while the model reads.

    Workers take shards of several datasets at a time; evidence that is read before there are
    probes goes through all datasets once more.
    """
    idle = lease.model.device.type != "cpu" and _cores_left()
    here = run.hands is None and _once(run)
    return here and (WHERE == "everywhere" or (WHERE == "gpu" and idle))


def _once(run: Run) -> bool:
    read = passes_of_pieces(run.config) or any(p.read for p in pieces_of(run.config))
    return not read
