"""A dataset analysed while the model reads the next one, where the model is on a GPU.

A thread hands the parts of the analysis to other processes and waits for them. It saves the probes
and writes nothing else; what it has not begun when the reading ends is done afterwards, with all
cores. The numbers are the same either way, since no part knows of the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from queue import SimpleQueue
from typing import Literal

from anchorscope import ranks
from anchorscope.config import Config
from anchorscope.engine.lease import Lease
from anchorscope.evidence.pieces import Tables, passes_of_pieces, piece_of, pieces_of, probed_of
from anchorscope.parallel import default_workers, in_parallel, stop_workers
from anchorscope.pipeline.analyse import pathways_of, readings_of
from anchorscope.pipeline.evidence import parts_of_evidence
from anchorscope.pipeline.shard import OnDataset
from anchorscope.pipeline.stages import Run
from anchorscope.probes.at_once import fits_on
from anchorscope.probes.labelled import labelled
from anchorscope.probes.readings import Readings
from anchorscope.progress import Quiet
from anchorscope.records import Sample

# On a CPU the model has all cores to itself. Tests set another value.
WHERE: Literal["gpu", "everywhere", "nowhere"] = "gpu"
# Who makes the fits where the model is on a GPU. "gpu" has been tried with torch on a CPU alone, so
# that the cores make them until it is proved and timed where it would run.
FITS: Literal["cores", "gpu"] = "cores"
_SPARED = 2  # cores for the threads that feed the GPU and write files
_LEAST = 2  # processes: fewer would not be worth it, and one alone is this one


@dataclass
class Analysed:
    """What is known of some datasets already, by name."""

    readings: dict[str, Readings] = field(default_factory=dict)
    pathways: dict[str, Tables] = field(default_factory=dict)
    evidence: dict[str, list[Tables]] = field(default_factory=dict)


class Beside:
    """The thread, for as long as the `with` block reads; `done` is what it has come to."""

    def __init__(self, run: Run, lease: Lease) -> None:
        self.done = Analysed()
        self._run, self._asked, self._device = run, _asked(run, lease), fit_device(lease)
        self._workers = max(_LEAST, default_workers() - _SPARED)
        self._steps: SimpleQueue[tuple[str, Callable[[], None]] | None] = SimpleQueue()
        self._spent: list[tuple[str, float, float]] = []  # stage, begun, ended
        self._reading = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="analysis", daemon=True)

    @property
    def on_dataset(self) -> OnDataset | None:
        """Takes up a dataset; None where each is to wait until all are read."""
        return self._begin if self._asked else None

    def __enter__(self) -> Beside:
        if self._asked:
            self._reading.set()
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if not self._asked:
            return
        read = time.monotonic()
        self._reading.clear()
        self._steps.put(None)
        self._wait(abandon=kind is not None)
        for stage, begun, ended in self._spent:
            late = max(0.0, ended - max(begun, read))
            self._run.add_to(stage, seconds=late, beside=ended - begun - late)
        if kind is None and self._error is not None:
            raise self._error

    def _begin(self, samples: Sequence[Sample], *, shards: int) -> None:
        """Puts the steps of a dataset behind those of the ones before it."""
        run, done = replace(self._run, progress=Quiet()), self.done
        name, workers = samples[0].question.dataset, self._workers
        answers = cache(partial(labelled, samples, name, run.config))

        def probes() -> None:
            passes = probed_of(run.config)
            done.readings |= readings_of(run, [answers()], passes=passes, workers=workers)

        def pathways() -> None:
            done.pathways |= pathways_of(run, [answers()], done.readings, workers=workers)

        def evidence() -> None:
            read = done.readings[name]
            done.evidence[name] = parts_of_evidence(
                run, answers(), read, samples, shards=shards, workers=workers
            )

        for step in (("probes", probes), ("pathways", pathways), ("evidence tables", evidence)):
            self._steps.put(step)

    def _work(self) -> None:
        """Does the steps in turn, until one fails or nothing is read any more."""
        try:
            _start_workers(self._run.config, self._workers)
            with fits_on(self._device):
                while (step := self._steps.get()) is not None and self._reading.is_set():
                    self._do(*step)
        except BaseException as error:
            self._error = error

    def _do(self, stage: str, work: Callable[[], None]) -> None:
        begun = time.monotonic()
        try:
            work()
        finally:
            self._spent.append((stage, begun, time.monotonic()))

    def _wait(self, *, abandon: bool) -> None:
        """Until the step under way is done, or ended where the run breaks off."""
        try:
            while not abandon and self._thread.is_alive():
                self._thread.join(0.2)  # so that Ctrl-C is heard
        except BaseException:
            abandon = True
            raise
        finally:
            while abandon and self._thread.is_alive():
                stop_workers()  # again where the step had not come to them yet
                self._thread.join(1)


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
