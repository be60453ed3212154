"""Run tasks in this process, in local processes, on Ray actors, or as one rank's share.

Stages pass tasks to `Reader.map`. A task is done once its files are on disk; the task of a lost
worker is run again. States are never sent between processes: every worker writes its own files.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import joblib
import torch
from loky import BrokenProcessPool, ProcessPoolExecutor

from anchorscope.answers.prompted import Shard
from anchorscope.config import Config
from anchorscope.engine import HALVED
from anchorscope.engine.interventions import CAUGHT, passes_of
from anchorscope.errors import UserError
from anchorscope.evidence.pieces import Tables, passes_of_pieces, pieces_of
from anchorscope.parallel import begin_own_process, default_workers, end_workers
from anchorscope.pipeline.analyse import analyse_dataset, stored_datasets, train_probes
from anchorscope.pipeline.prepare import leased, prepare
from anchorscope.pipeline.read_states import Reader, Task, Worker
from anchorscope.pipeline.request import Run
from anchorscope.run_folder.samples import answers_name
from anchorscope.run_folder.states import shard_name
from anchorscope.run_folder.store import Busy

LOST = 3  # workers lost on one task after which the run stops
_ON_GPUS = ("auto", "cuda", "balanced")
_SPARED = 2  # cores for the threads that feed a GPU and write files
_PAUSE = 0.5  # seconds between two checks of the run folder
_OWNERS = ("identity", "finished", "format")  # fields of run.json that only the owner sets


@contextmanager
def open_reader(run: Run, model: Any) -> Iterator[Reader]:
    """Load the model in the processes that the config names, and prepare the run's shards."""
    config = run.config
    if _pooled(config):
        if config.ray is not None:
            pool = WorkerPool(run, _ray_workers(run))
        else:
            count = config.workers or 1
            places = [worker_environment(config, number, count) for number in range(count)]
            pool = WorkerPool(run, [LocalWorker(run, place) for place in places])
        try:
            ((_, (info, shards)),) = pool.map([Task("The preparation", _prepare)])
            run.store.save_info({name: info[name] for name in info if name not in _OWNERS})
            facts = info["model"]
            run.progress.note(f"{facts['name']}: {facts['why']}")
            run.progress.note(f"prompts as {facts['prompt']}: {facts['prompt_why']}")
            yield Reader(shards=shards, count=len(shards), map=pool.map)
        finally:
            pool.stop()
        return
    if config.rank is not None:
        model = _describe_once(run, model)
        run = replace(run, store=run.store.borrowed())  # a rank writes nothing but its shards
    with leased(run, model) as lease:
        shards = prepare(run, lease)
        own = shards[config.rank or 0 :: config.world_size or 1]
        yield Reader(shards=own, count=len(shards), map=partial(_map_here, Worker(run, lease)))


def _pooled(config: Config) -> bool:
    """Whether worker processes load the model instead of this one."""
    return config.workers is not None or config.ray is not None


def check_spread(config: Config, model: Any) -> None:
    """Raise a UserError where options for ranks, workers and models contradict each other."""
    rank, ranks = config.rank, config.world_size
    alone = rank is None and ranks is None
    if not alone and (_pooled(config) or not 0 <= (-1 if rank is None else rank) < (ranks or 0)):
        raise UserError(
            f"--rank is {rank} and --world-size {ranks}. Accepted: both or neither, a rank from 0 "
            "to the world size less 1, without --workers and --ray: a rank is one process."
        )
    if _pooled(config) and model is not None and not isinstance(model, str | os.PathLike):
        raise UserError(
            "A loaded model was given together with workers, and each loads the model itself. "
            "Give its name, folder or file instead."
        )


def _prepare(worker: Worker) -> tuple[dict[str, Any], list[Shard]]:
    """Prepare every question in a worker; return the content of run.json and the shards."""
    shards = prepare(worker.run, worker.lease)
    return worker.run.store.info, shards


def _map_here(worker: Worker, tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
    """Run the tasks in this process; one task's files are written while the next is computed."""
    try:
        for number, task in enumerate(tasks):
            yield number, task.work(worker)
    except BaseException:
        with suppress(Exception):  # raise the first error
            worker.finish()
        raise
    worker.finish()


def _describe_once(run: Run, model: Any) -> Any:
    """Write the prompt style and shard size to run.json on one rank, while the others wait.

    Ranks may start at the same time, in any order. Returns the model, loaded on that one rank.
    """
    while "prompt" not in run.store.info.get("model", {}):
        with suppress(Busy), run.store.owned():
            if "prompt" not in run.store.info.get("model", {}):
                with leased(run, model) as lease:
                    prepare(run, lease)
                return lease.model
        time.sleep(_PAUSE)
    return model


# The analysis of one dataset while the next one is read.


@contextmanager
def analysed_meanwhile(run: Run, reader: Reader) -> Iterator[dict[str, Tables]]:
    """Analyse each dataset in another process on idle cores, as soon as its files are on disk.

    Yields the tables by dataset, filled in when the block ends; empty where no cores are idle or
    where evidence needs all datasets before probes are trained. A dataset whose analysis fails is
    left to the caller, so that its error is raised once.
    """
    tables: dict[str, Tables] = {}
    config = run.config
    needs_all = passes_of_pieces(config) or any(piece.stages for piece in pieces_of(config))
    if needs_all or config.ablate or _pooled(config) or not _cores_are_idle(run):
        yield tables
        return
    cores = max(1, default_workers() - _SPARED)
    pool = ProcessPoolExecutor(
        1,
        initializer=partial(begin_own_process, os.getpid()),
        env={"LOKY_MAX_CPU_COUNT": str(cores)},
    )
    try:
        futures = {}
        for name in dict.fromkeys(shard.dataset for shard in reader.shards):
            numbers = [shard.number for shard in reader.shards if shard.dataset == name]
            futures[name] = pool.submit(_analyse_when_read, run, numbers)
        yield tables
        with run.stage("pathways"):  # the rest of the analysis once all states are read
            wait(futures.values())
        tables |= {name: f.result() for name, f in futures.items() if f.exception() is None}
        pool.submit(end_workers).result()  # else loky warns of what a killed process leaves behind
    finally:
        pool.shutdown(wait=True, kill_workers=True)


def _cores_are_idle(run: Run) -> bool:
    return run.store.info["model"]["device"] != "cpu" and default_workers() >= 2 * _SPARED


def _analyse_when_read(run: Run, shards: Sequence[int]) -> Tables:
    """Compute the tables of a dataset once all of its shards are on disk."""
    passes = (*CAUGHT, *(cut.name for cut in passes_of(run.config)))
    files = [answers_name(number) for number in shards]
    files += [shard_name(cut, number) for cut in passes for number in shards]
    while not all(run.store.file(file).exists() for file in files):
        time.sleep(_PAUSE)
    (dataset,) = stored_datasets(run, shards)
    return analyse_dataset(run, dataset, train_probes(run, dataset))


# Workers: processes that each load the model, on this machine or under Ray.


# A task's result, the tokens of the batches that ran out of memory, and the process id.
Done = tuple[Any, list[int], int]


class ModelProcess:
    """Run tasks in a worker process; the model is loaded for the first task."""

    def __init__(self, run: Run, working_folder: str) -> None:
        from transformers.utils import logging as transformers_logging

        self._run, self._worker = run, None
        with suppress(OSError):  # another machine may not have it
            os.chdir(working_folder)  # in which a relative path of the config is meant
        transformers_logging.disable_progress_bar()  # the run has its own
        transformers_logging.set_verbosity_error()

    def process_id(self) -> int:
        return os.getpid()

    def do(self, info: dict[str, Any], task: Task) -> Done:
        """Run a task; `info` is the driver's content of run.json."""
        if self._worker is None:
            self._run.store.save_info(info)
            self._model = leased(self._run, None)  # until the process ends
            self._worker = Worker(self._run, self._model.__enter__())
        halved, result = len(HALVED), task.work(self._worker)
        self._worker.finish()
        return result, HALVED[halved:], os.getpid()


class LocalWorker:
    """A worker process on this machine that loads the model."""

    lost = BrokenProcessPool  # raised where the process ended
    starts = LOST  # processes that one task may use up

    def __init__(self, run: Run, environment: dict[str, str]) -> None:
        self._begin, self._environment = partial(_begin_process, run, os.getcwd()), environment

    def start(self) -> Future[int]:
        """Start the process; return a future of its process id."""
        self._executor = ProcessPoolExecutor(1, initializer=self._begin, env=self._environment)
        return self._executor.submit(os.getpid)

    def do(self, info: dict[str, Any], task: Task) -> Done:
        return self._executor.submit(_do_in_process, info, task).result()

    def stop(self) -> None:
        self._executor.shutdown(wait=True, kill_workers=True)


_process: ModelProcess | None = None  # of a local worker


def _begin_process(run: Run, working_folder: str) -> None:
    global _process
    begin_own_process(os.getppid())
    _process = ModelProcess(run, working_folder)


def _do_in_process(info: dict[str, Any], task: Task) -> Done:
    assert _process is not None, "a process begins before its tasks"
    return _process.do(info, task)


class RayWorker:
    """A worker actor on a Ray cluster that loads the model; Ray itself restarts a lost one."""

    starts = 1

    def __init__(self, ray: Any, run: Run, options: dict[str, Any]) -> None:
        self.lost = ray.exceptions.RayActorError  # raised where restarts did not help
        self._ray, self._run = ray, run
        self._actor_class = ray.remote(ModelProcess).options(**options)

    def start(self) -> Future[int]:
        """Start the actor; return a future of its process id."""
        self._actor = self._actor_class.remote(self._run, os.getcwd())
        return self._actor.process_id.remote().future()

    def do(self, info: dict[str, Any], task: Task) -> Done:
        try:
            return self._ray.get(self._actor.do.remote(info, task))
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def stop(self) -> None:
        self._ray.kill(self._actor)


class WorkerPool:
    """A pool of workers, one task each at a time; a lost worker's task is run on a new one."""

    def __init__(self, run: Run, workers: Sequence[LocalWorker | RayWorker]) -> None:
        self._run, self._workers, self._stopped = run, workers, False
        self._started = [worker.start() for worker in workers]
        self._named: set[int] = set()  # processes
        self._idle: SimpleQueue[int] = SimpleQueue()
        for place in range(len(workers)):
            self._idle.put(place)

    def map(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
        """Run the tasks; yield the number and result of each once its files are on disk."""
        info = self._run.store.info
        threads = ThreadPoolExecutor(len(self._workers))
        futures = {threads.submit(self._do, info, task): n for n, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                result, halved, _ = future.result()
                HALVED.extend(halved)
                yield futures[future], result
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
        self._run.store.fetch()

    def stop(self) -> None:
        """Kill all workers."""
        self._stopped = True
        for worker in self._workers:
            worker.stop()

    def _do(self, info: dict[str, Any], task: Task) -> Done:
        """Run a task on the first free worker; restart a lost worker and run the task again."""
        place = self._idle.get()
        worker = self._workers[place]
        try:
            for start in range(worker.starts):
                if start:
                    worker.stop()
                    self._started[place] = worker.start()
                try:
                    self._name(place, self._started[place].result())
                    done = worker.do(info, task)
                    self._name(place, done[2])  # a new id where Ray restarted the actor
                    return done
                except worker.lost:
                    if self._stopped:
                        raise
                    self._run.progress.note(f"a worker was lost: {task.name} again")
            raise UserError(
                f"{task.name} ended {LOST} workers, so the run stops. What was finished is kept. "
                "Look for what stopped them (often memory: take fewer workers), and run the same "
                "command again."
            )
        finally:
            self._idle.put(place)

    def _name(self, place: int, process: int) -> None:
        """Report a worker's process id to the progress listener, once."""
        if process not in self._named:
            self._named.add(process)
            note = f"worker {place + 1} of {len(self._workers)} is process {process}"
            self._run.progress.note(note)


# The number of workers, and the GPUs and threads of each.


def worker_environment(config: Config, place: int, count: int) -> dict[str, str]:
    """The environment variables (GPUs or threads) of local worker number `place` of `count`."""
    gpus: list[str] = []
    if config.device in _ON_GPUS:
        named, visible = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()
        gpus = named.split(",")[:visible] if named else [str(number) for number in range(visible)]
    if not gpus:
        return _thread_environment(config, count)
    each = config.gpus_per_worker or 1
    _check_gpus(count, each, len(gpus))
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[place * each : (place + 1) * each])}


def _check_gpus(count: int, each: int, gpus: int) -> None:
    """Raise a UserError where there are fewer GPUs than the workers need."""
    if count * each > gpus or count < 1:
        raise UserError(
            f"{count} workers with {each} GPU each were asked for, and there are {gpus} GPUs. "
            f"Accepted: up to {gpus // each} workers here; --device cpu takes none."
        )


def _thread_environment(config: Config, count: int) -> dict[str, str]:
    """The variables that divide a machine's cores into threads for `count` processes."""
    threads = str(config.threads or max(1, joblib.cpu_count() // count))
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}


def _ray_workers(run: Run) -> list[RayWorker]:
    """One worker for each GPU of the cluster, or for each machine where there is none."""
    config, ray = run.config, _connect(run.config)
    gpus = int(ray.cluster_resources().get("GPU", 0)) if config.device in _ON_GPUS else 0
    each = (config.gpus_per_worker or 1) if gpus else 0
    machines = sum(node["Alive"] for node in ray.nodes())
    count = config.workers or (gpus // each if gpus else machines)
    if each:
        _check_gpus(count, each, gpus)
    variables = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    variables |= {} if each else _thread_environment(config, count // machines or 1)
    kept = ("ANCHORSCOPE_CACHE", "HF_HOME", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM")
    variables |= {name: os.environ[name] for name in kept if name in os.environ}
    options = {
        "num_gpus": each,
        "num_cpus": 0,  # threads are set by the environment variables
        "scheduling_strategy": "DEFAULT" if each else "SPREAD",
        "max_restarts": LOST,
        "max_task_retries": -1,  # until restarts are used up: a lost machine is noticed late
        "runtime_env": {"env_vars": variables},
    }
    return [RayWorker(ray, run, options) for _ in range(count)]


def _connect(config: Config) -> Any:
    """Connect Ray to the cluster that the config names; return the module `ray`."""
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"})
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "--ray needs Ray, and it is not installed: pip install 'anchorscope[ray]'. On one "
            "machine --workers does the same without it."
        ) from error
    local = {"include_dashboard": False, "object_store_memory": 128 << 20}
    try:
        ray.init(
            address=config.ray,
            ignore_reinit_error=True,
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
