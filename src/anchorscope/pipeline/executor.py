"""Where a run's work is done: this process, local processes, Ray actors, or one rank's share.

Steps hand tasks to `Reader.map` and know nothing of processes. A task is done once: what it writes
is on disk when it counts as done, and that of a lost worker is done again. States never travel;
every worker writes its own files.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import pandas as pd
import torch
from joblib.externals.loky import BrokenProcessPool, ProcessPoolExecutor
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from anchorscope.config import Config
from anchorscope.engine import HALVED
from anchorscope.engine.batches import Budget
from anchorscope.engine.decode import Prefix
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CAUGHT, passes_of
from anchorscope.errors import UserError
from anchorscope.evidence.pieces import Tables, passes_of_pieces, pieces_of
from anchorscope.evidence.shards import read_ends
from anchorscope.models import Model
from anchorscope.models.parts import find_parts
from anchorscope.parallel import begin_own_process, default_workers
from anchorscope.pipeline.analyse import analyse_dataset, stored_dataset, train_probes
from anchorscope.pipeline.model import load
from anchorscope.pipeline.prepare import Shard, prepare
from anchorscope.pipeline.read_states import Reader, Task, Worker
from anchorscope.pipeline.stages import Run, answers_name
from anchorscope.records import QuestionSet
from anchorscope.run_folder.remote import remote_of
from anchorscope.run_folder.states import shard_name
from anchorscope.run_folder.store import Busy, Store

LOST = 3  # workers in a row that may end before any task is done
FIXED_PROMPT = "fixed-prompt.safetensors"
_PROMPT = "The river that flows through the largest city of the country is called"
# Of a layer's own length. Rounding alone stays far below; another kernel in half precision near it.
_ROUNDING = {"torch.float32": 1e-4, "torch.float16": 1e-2, "torch.bfloat16": 5e-2}
_ON_GPUS = ("auto", "cuda", "balanced")
_SPARED = 2  # cores for the threads that feed a GPU and write files
_LOOK = 0.2  # seconds between two looks at what was announced, and for Ctrl-C
_PAUSE = 0.5  # seconds between two looks at run.json
_OWNERS = ("identity", "finished", "format")  # of run.json: no worker has a say in them
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
_MODEL_FACTS = ("name", "source", "revision", "tokenizer", "why", "adapter")


@contextmanager
def open_reader(run: Run, model: Any) -> Iterator[Reader]:
    """The model of a run for as long as its steps need it, with the run's shards."""
    config, folder = run.config, run.store.path
    if config.rank is not None:
        model = _describe_once(run, model)
        # A rank owns nothing but its shards.
        run = replace(run, store=Store(folder, info=run.store.info, remote=run.store.remote))
    if config.workers is None and config.ray is None:
        with threads_of_run(config, run.store.info), Lease(load(run, model)) as lease:
            if config.rank is not None:
                compare_fixed_prompt(run.store, lease)
            shards = prepare(run, lease)
            yield Reader(
                lease=lease,
                folder=folder,
                shards=[shard for shard in shards if is_own(shard.number, config)],
                count=len(shards),
                map=partial(_map_here, Worker(run, lease)),
            )
        return
    with _ray_pool(run) if config.ray is not None else _local_pool(run) as pool:
        ((_, prepared),) = pool.map([Prepare()])
        kept = {name: value for name, value in prepared.info.items() if name not in _OWNERS}
        run.store.save_info(kept)
        facts = kept["model"]
        run.progress.note(f"{facts['name']}: {facts['why']}")
        run.progress.note(f"prompts as {facts['prompt']}: {facts['prompt_why']}")
        with Lease(prepared.outline.model()) as lease:
            yield Reader(
                lease=lease,
                folder=folder,
                shards=prepared.shards,
                count=len(prepared.shards),
                map=pool.map,
            )


def check_spread(config: Config, model: Any) -> None:
    """Raise a UserError where the options that spread a run do not go together."""
    spread = [n for n in ("workers", "ray", "rank") if getattr(config, n) is not None]
    if (config.rank is None) != (config.world_size is None):
        raise UserError("--rank and --world-size go together: give both, or neither.")
    if config.rank is not None and not 0 <= config.rank < (config.world_size or 0):
        raise UserError(
            f"--rank is {config.rank} of {config.world_size}. Accepted: 0 to the world size less 1."
        )
    if config.rank is not None and len(spread) > 1:
        raise UserError("--rank is for one process: leave out --workers and --ray.")
    pooled = spread and spread != ["rank"]
    if pooled and model is not None and not isinstance(model, str | os.PathLike):
        raise UserError(
            "A loaded model was given together with workers, and each loads the model itself. "
            "Give its name, folder or file instead."
        )
    for name in ("workers", "threads", "gpus_per_worker"):
        if (value := getattr(config, name)) is not None and value < 1:
            raise UserError(f"{name} is {value}. Accepted: 1 or more.")


@contextmanager
def analysed_meanwhile(run: Run, reader: Reader) -> Iterator[dict[str, Tables]]:
    """Analyse each dataset on idle cores, in another process, as soon as its files are there.

    The tables by dataset, when the block has ended; none where the cores have enough to do, or
    where evidence goes through all datasets before there are probes. A dataset is left to the
    caller where its analysis fails, so that an error is told once.
    """
    tables: dict[str, Tables] = {}
    if not _overlaps(run, reader):
        yield tables
        return
    numbers: dict[str, list[int]] = {}
    for shard in reader.shards:
        numbers.setdefault(shard.dataset, []).append(shard.number)
    with tempfile.TemporaryDirectory() as folder:
        pool = ProcessPoolExecutor(
            1,
            initializer=partial(begin_own_process, os.getpid()),
            env={"LOKY_MAX_CPU_COUNT": str(max(1, default_workers() - _SPARED))},
        )
        try:
            work = partial(_analyse_as_read, _job(run), run.store.info, numbers, Path(folder))
            future = pool.submit(work)
            yield tables
            while not wait([future], _LOOK).done:  # Ctrl-C is heard
                pass
        finally:
            pool.shutdown(wait=True, kill_workers=True)
        for dataset in numbers:
            files = sorted((Path(folder) / dataset).glob("*.parquet"))
            if files:
                tables[dataset] = {file.stem: pd.read_parquet(file) for file in files}


def _overlaps(run: Run, reader: Reader) -> bool:
    """Whether a dataset's files are complete while the model reads on, and cores are idle."""
    waits = passes_of_pieces(run.config) or run.config.ablate
    waits = waits or any(piece.stages for piece in pieces_of(run.config))
    alone = run.config.workers is None and run.config.ray is None
    return alone and not waits and _cores_are_idle(reader)


def _cores_are_idle(reader: Reader) -> bool:
    return reader.lease.model.device.type != "cpu" and default_workers() >= 2 * _SPARED


def _analyse_as_read(
    job: Job, info: dict[str, Any], numbers: Mapping[str, Sequence[int]], folder: Path
) -> None:
    """Write the tables of each dataset to `folder`/<dataset> when its shards are there."""
    run = _run_of(job, info)
    passes = (*CAUGHT, *(cut.name for cut in passes_of(run.config)))
    for name, shards in numbers.items():
        files = [answers_name(number) for number in shards]
        files += [shard_name(cut, number) for cut in passes for number in shards]
        while not all(run.store.file(file).exists() for file in files):
            time.sleep(_PAUSE)
        dataset = stored_dataset(run, name, shards=shards)
        tables = analyse_dataset(run, dataset, train_probes(run, dataset))
        unfinished = folder / f"{name}.part"
        unfinished.mkdir()
        for table, rows in tables.items():
            rows.to_parquet(unfinished / f"{table}.parquet")
        unfinished.rename(folder / name)


# This process, or one rank of a batch system's array.


def _map_here(worker: Worker, tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
    """Do the tasks in this process; the files of one are written while the next is computed."""
    try:
        for number, task in enumerate(tasks):
            yield number, task(worker)
    except BaseException:
        with suppress(Exception):  # the first error is the one to tell
            worker.finish()
        raise
    worker.finish()


def is_own(number: int, config: Config) -> bool:
    """Whether a shard is this rank's: its number, divided by the world size, leaves the rank."""
    return config.world_size is None or number % config.world_size == config.rank


def _describe_once(run: Run, model: Any) -> Any:
    """The model, loaded if this rank had to say in run.json how shards are cut and asked.

    Ranks may start at the same time, in any order; the first one settles the prompts.
    """
    while not _described(run.store.info):
        try:
            with run.store.owned():
                if not _described(run.store.info):
                    with threads_of_run(run.config, run.store.info):
                        model = load(run, model)
                        with Lease(model) as lease:
                            prepare(run, lease)
        except Busy:
            time.sleep(_PAUSE)
    return model


def _described(info: dict[str, Any]) -> bool:
    return "shard" in info and "prompt" in info.get("model", {})


# A worker: one of several processes that have the model.


@dataclass(frozen=True, kw_only=True)
class Job:
    """The run that a worker takes part in."""

    folder: str
    url: str | None  # where the folder is the copy of one
    config: Config
    sets: Sequence[QuestionSet]
    working_folder: str  # in which a relative path of the config is meant


class Done(NamedTuple):
    """The result of a task, and what the worker has to say beside it."""

    number: int  # of the task
    result: Any
    halved: tuple[int, ...]  # tokens of the batches for which memory ran out
    process: int


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A model without its weights: enough to make prompts and to know its shape."""

    facts: dict[str, Any]
    kind: type
    config: Any

    def model(self) -> Model:
        """A model of that shape that computes nothing."""
        with torch.device("meta"):
            lm = self.kind(self.config)
        return Model(lm=lm.eval(), parts=find_parts(lm), **self.facts)


class Prepared(NamedTuple):
    """What the first worker finds out."""

    info: dict[str, Any]  # for run.json
    shards: list[Shard]
    outline: Outline


@dataclass(frozen=True)
class Prepare:
    """The task of describing the model and making every question ready."""

    def __str__(self) -> str:
        return "The preparation"

    def __call__(self, worker: Worker) -> Prepared:
        model = worker.lease.model
        outline = Outline(
            facts={name: getattr(model, name) for name in _MODEL_FACTS},
            kind=type(model.lm),
            config=model.lm.config,
        )
        shards = prepare(worker.run, worker.lease)
        return Prepared(worker.run.store.info, shards, outline)


class ModelProcess:
    """The worker's side: the model is loaded for the first task, and checked against the run's."""

    def __init__(self, job: Job) -> None:
        self.job, self.worker = job, None
        with suppress(OSError):  # another machine may not have it
            os.chdir(job.working_folder)
        _silence_libraries()

    def do(self, info: dict[str, Any], number: int, task: Task) -> Done:
        """The result of a task; `info` is run.json as the driver has it."""
        if self.worker is None:
            self.worker = self._open(info)
        halved, result = len(HALVED), task(self.worker)
        self.worker.finish()
        return Done(number, result, tuple(HALVED[halved:]), os.getpid())

    def _open(self, info: dict[str, Any]) -> Worker:
        run = _run_of(self.job, info)
        set_threads(run.config, info)
        lease = Lease(load(run, None))
        lease.__enter__()  # until the process ends
        compare_fixed_prompt(run.store, lease)
        return Worker(run, lease)


def _run_of(job: Job, info: dict[str, Any]) -> Run:
    """The run as a process sees it that does not own the folder."""
    remote = None if job.url is None else remote_of(job.url)
    folder = Path(job.folder) if remote is None else remote.local
    store = Store(folder, info=dict(info), remote=remote)
    return Run(store=store, config=job.config, sets=job.sets)


def compare_fixed_prompt(store: Store, lease: Lease) -> None:
    """Raise a UserError where this process's states are not the first worker's, but for rounding.

    Another kind of GPU, another version of torch, a broken kernel: weights and settings agree, and
    the states do not.
    """
    states = fixed_prompt_states(lease)
    store.create(FIXED_PROMPT, save_arrays({"states": states}))
    first = load_arrays(store.file(FIXED_PROMPT).read_bytes())["states"]
    most, distance = _ROUNDING.get(str(lease.model.dtype), 1e-4), float("inf")
    if states.shape == first.shape:
        lengths = np.linalg.norm(first, axis=1)
        distance = float((np.linalg.norm(states - first, axis=1) / lengths).max())
    if not distance <= most:
        raise UserError(
            f"This worker's states of a fixed prompt are not those in {store.file(FIXED_PROMPT)}: "
            f"they differ by {distance:.1g} of their length, and rounding explains {most:g}. Its "
            "device or its versions of torch and transformers are others. Use like machines, or "
            "another --out for this one."
        )


def fixed_prompt_states(lease: Lease) -> np.ndarray:
    """The states [layer, width] in float32 at the end of a fixed prompt."""
    ids = tuple(lease.model.tokenizer(_PROMPT)["input_ids"])
    budget = Budget.of(lease.model)
    states = read_ends(lease, Prefix((), None), {"fixed": ids}, budget=budget)["fixed"]
    return np.ascontiguousarray(states, dtype=np.float32)


def _silence_libraries() -> None:
    """Stop the progress bars of the libraries underneath: the run has its own."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


# Local processes.


@contextmanager
def _local_pool(run: Run) -> Iterator[LocalPool]:
    pool = LocalPool(run)
    try:
        yield pool
    finally:
        pool.stop()


class LocalPool:
    """Processes of this machine, which load the model each; lost ones are replaced."""

    def __init__(self, run: Run) -> None:
        self._run, self._count = run, run.config.workers or 1
        self._places = [worker_environment(run.config, n, self._count) for n in range(self._count)]
        self._executor: ProcessPoolExecutor | None = None
        self._announced = Path()  # a folder with a file for each process, its number in it
        self._named: set[Path] = set()

    def map(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
        """The number and result of each task as it is done."""
        left, lost = dict(enumerate(tasks)), 0
        while left:
            try:
                info = self._run.store.info
                futures = [
                    self._open().submit(partial(_do_in_process, info, number, task))
                    for number, task in left.items()
                ]
                for done in self._finished(futures):
                    HALVED.extend(done.halved)
                    lost = 0
                    del left[done.number]
                    yield done.number, done.result
            except BrokenProcessPool:
                lost += 1
                self.stop()
                task = next(iter(left.values()))
                if lost == LOST:
                    raise _hopeless(task) from None
                self._run.progress.note(f"a worker was lost: {task} again")
        self._run.store.fetch()

    def stop(self) -> None:
        """End all processes, whatever they do."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, kill_workers=True)
            shutil.rmtree(self._announced, ignore_errors=True)
        self._executor = None

    def _open(self) -> ProcessPoolExecutor:
        if self._executor is None:
            self._announced = Path(tempfile.mkdtemp())
            begin = partial(_begin_process, _job(self._run), self._announced, self._places)
            shared = self._places[0] if "OMP_NUM_THREADS" in self._places[0] else None
            self._executor = ProcessPoolExecutor(self._count, initializer=begin, env=shared)
        return self._executor

    def _finished(self, futures: Sequence[Future[Done]]) -> Iterator[Done]:
        """What the futures give as they are done; meanwhile new processes are named."""
        waiting = set(futures)
        while waiting:
            finished, waiting = wait(waiting, _LOOK, return_when=FIRST_COMPLETED)
            for file in sorted(set(self._announced.iterdir()) - self._named):
                if process := file.read_text(encoding="utf-8"):
                    self._named.add(file)
                    note = f"worker {file.name} of {self._count} is process {process}"
                    self._run.progress.note(note)
            for future in finished:
                yield future.result()


_process: ModelProcess | None = None  # of a local worker


def _begin_process(job: Job, announced: Path, places: Sequence[dict[str, str]]) -> None:
    """Take a place that is free, with its GPUs, and say which process has it."""
    global _process
    begin_own_process(os.getppid())
    for place, environment in enumerate(places, start=1):
        with suppress(FileExistsError), (announced / str(place)).open("x") as file:
            os.environ.update(environment)
            file.write(str(os.getpid()))
            break
    _process = ModelProcess(job)


def _do_in_process(info: dict[str, Any], number: int, task: Task) -> Done:
    assert _process is not None, "a process begins before its tasks"
    return _process.do(info, number, task)


def _job(run: Run) -> Job:
    store = run.store
    return Job(
        folder=str(store.path.absolute()),
        url=None if store.remote is None else store.remote.url,
        config=run.config,
        sets=run.sets,
        working_folder=os.getcwd(),
    )


def _hopeless(task: Task) -> UserError:
    return UserError(
        f"{task} ended {LOST} workers, so the run stops. What was finished is kept. Look for what "
        "stopped them (often memory: take fewer workers), and run the same command again."
    )


def worker_environment(config: Config, place: int, count: int) -> dict[str, str]:
    """The environment of worker number `place` of `count` on this machine."""
    gpus = visible_gpus() if config.device in _ON_GPUS else []
    if not gpus:
        return thread_environment(threads_for(config, count))
    each = config.gpus_per_worker or 1
    if count * each > len(gpus):
        raise UserError(
            f"{count} workers with {each} GPU each were asked for, and there are {len(gpus)} GPUs. "
            f"Accepted: up to {len(gpus) // each} workers here; --device cpu takes none."
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[place * each : (place + 1) * each])}


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def threads_for(config: Config, count: int) -> int:
    """Arithmetic threads of each of `count` processes on a CPU."""
    return config.threads or max(1, joblib.cpu_count() // count)


def thread_environment(threads: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def set_threads(config: Config, info: dict[str, Any]) -> None:
    """Take as many threads as the config names, else as the run began with."""
    threads = config.threads or info.get("model", {}).get("threads")
    if threads:
        torch.set_num_threads(int(threads))


@contextmanager
def threads_of_run(config: Config, info: dict[str, Any]) -> Iterator[None]:
    """As many threads as the run began with: the order of sums depends on it."""
    before = torch.get_num_threads()
    set_threads(config, info)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Ray actors, on one machine or a cluster.


@contextmanager
def _ray_pool(run: Run) -> Iterator[RayPool]:
    pool = RayPool(run)
    try:
        yield pool
    finally:
        pool.stop()


class RayPool:
    """Ray actors that have the model; Ray restarts a lost one and does its task again."""

    def __init__(self, run: Run) -> None:
        self._run, self._ray = run, _connect(run.config)
        ray, config = self._ray, run.config
        gpus = int(ray.cluster_resources().get("GPU", 0)) if config.device in _ON_GPUS else 0
        each = (config.gpus_per_worker or 1) if gpus else 0
        machines = sum(node["Alive"] for node in ray.nodes())
        count = config.workers or (gpus // each if gpus else machines)
        if count * each > gpus or count < 1:
            raise UserError(
                f"{count} workers with {each} GPU each were asked for, and Ray has {gpus} GPUs. "
                "Take fewer workers, fewer --gpus-per-worker, or --device cpu."
            )
        options = _ray_options(config, each, count // machines or 1)
        actor = ray.remote(ModelProcess).options(**options)
        self._actors = [actor.remote(_job(run)) for _ in range(count)]
        self._processes: set[int] = set()

    def map(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
        """The number and result of each task as it is done."""
        from ray.util import ActorPool

        info, errors = self._run.store.info, self._ray.exceptions
        pool: Any = ActorPool(self._actors)  # whose own annotation says a list
        done_anywhere = pool.map_unordered(
            lambda actor, numbered: actor.do.remote(info, *numbered), list(enumerate(tasks))
        )
        left = dict(enumerate(tasks))
        try:
            for done in done_anywhere:
                HALVED.extend(done.halved)
                self._name(done.process)
                del left[done.number]
                yield done.number, done.result
        except errors.RayTaskError as error:  # whatever the worker raised, with its traceback
            raise (error.cause if isinstance(error.cause, UserError) else error) from None
        except errors.RayActorError as error:
            raise _hopeless(next(iter(left.values()))) from error
        self._run.store.fetch()

    def stop(self) -> None:
        """End all actors, whatever they do."""
        for actor in self._actors:
            self._ray.kill(actor)

    def _name(self, process: int) -> None:
        """Say which process a worker is, the first time that it has done something."""
        if process in self._processes:
            return
        self._processes.add(process)
        place, count = len(self._processes), len(self._actors)
        which = f"worker {place} of {count}" if place <= count else "a worker was lost: its place"
        self._run.progress.note(f"{which} is process {process} under Ray")


def _connect(config: Config) -> Any:
    """Ray, connected to the cluster that the config names."""
    os.environ.update(_QUIET)
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "--ray needs Ray, and it is not installed: pip install 'anchorscope[ray]'. On one "
            "machine --workers does the same without it."
        ) from error
    if ray.is_initialized():
        return ray
    local = {"include_dashboard": False, "object_store_memory": 128 << 20}
    try:
        ray.init(
            address=config.ray,
            log_to_driver=True,
            logging_level=logging.ERROR,
            configure_logging=False,
            **(local if config.ray == "local" else {}),
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(
            f"Ray at '{config.ray}' cannot be reached: {str(error).splitlines()[0]} "
            "Accepted: local (starts one here), auto (the one of this machine), or an address."
        ) from error
    return ray


def _ray_options(config: Config, gpus: int, on_one: int) -> dict[str, Any]:
    """What Ray keeps for each actor, the environment it starts in, and how often it is replaced."""
    path = os.pathsep.join(part for part in sys.path if part)
    variables = {"PYTHONPATH": path}
    variables |= {} if gpus else thread_environment(threads_for(config, on_one))
    kept = ("ANCHORSCOPE_CACHE", "HF_HOME", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM")
    variables |= {name: os.environ[name] for name in kept if name in os.environ}
    return {
        "num_gpus": gpus,
        "num_cpus": 0,  # threads are shared out by us
        "scheduling_strategy": "DEFAULT" if gpus else "SPREAD",
        "max_restarts": LOST,
        "max_task_retries": LOST,
        "runtime_env": {"env_vars": variables},
    }
