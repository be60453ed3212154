"""Workers as Ray actors: one machine or a cluster, the same tasks and the same folder.

Tasks and counts of tokens pass through Ray; states are written by the worker and never do.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from anchorscope.config import Config
from anchorscope.errors import UserError
from anchorscope.pipeline.spread.hands import Hands, Helper, Lost
from anchorscope.pipeline.spread.local import answer, answer_of, be_quiet
from anchorscope.pipeline.spread.machine import thread_environment, threads_for
from anchorscope.pipeline.spread.tasks import Job, Task
from anchorscope.pipeline.stages import Run

_ON_GPUS = ("auto", "cuda", "balanced")
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}


def ray_hands(run: Run, job: Callable[[], Job]) -> Hands:
    """Actors that hold the model, as many as were asked for or as the cluster has GPUs."""
    ray = _connect(run.config)
    gpus = int(ray.cluster_resources().get("GPU", 0)) if run.config.device in _ON_GPUS else 0
    each = (run.config.gpus_per_worker or 1) if gpus else 0
    machines = sum(node["Alive"] for node in ray.nodes())
    count = run.config.workers or (gpus // each if gpus else machines)
    if count * each > gpus or count < 1:
        raise UserError(
            f"{count} workers with {each} GPU each were asked for, and Ray has {gpus} GPUs. "
            "Take fewer workers, fewer --gpus-per-worker, or --device cpu."
        )

    def start(place: int) -> Helper:
        def begun(process: int) -> None:
            run.progress.note(f"worker {place + 1} of {count} is process {process} under Ray")

        return _Actor(ray, job, begun, _options(run.config, each, count // machines or 1))

    return Hands(run, start, count)


def _connect(config: Config) -> Any:
    """Ray, connected to what was asked for."""
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
    local = config.ray == "local"
    how: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 128 << 20}
    try:
        ray.init(
            address=config.ray,
            log_to_driver=True,
            logging_level=logging.ERROR,
            configure_logging=False,
            **(how if local else {}),
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(
            f"Ray at '{config.ray}' cannot be reached: {str(error).splitlines()[0]} "
            "Accepted: local (starts one here), auto (the one of this machine), or an address."
        ) from error
    return ray


def _options(config: Config, gpus: int, on_one: int) -> dict[str, Any]:
    """What Ray keeps for each actor, and the environment it starts in."""
    threads = threads_for(config, on_one)
    path = os.pathsep.join(part for part in sys.path if part)
    variables = {"PYTHONPATH": path, **({} if gpus else thread_environment(threads))}
    kept = ("ANCHORSCOPE_CACHE", "HF_HOME", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM")
    variables |= {name: os.environ[name] for name in kept if name in os.environ}
    return {
        "num_gpus": gpus,
        "num_cpus": 0,  # threads are shared out by us
        "scheduling_strategy": "DEFAULT" if gpus else "SPREAD",
        "max_restarts": 0,  # the queue starts another and counts
        "runtime_env": {"env_vars": variables},
    }


class _Seat:
    """The actor's side: a worker, and what it says to each message."""

    def __init__(self) -> None:
        be_quiet()
        self.worker = None

    def process(self) -> int:
        return os.getpid()

    def ask(self, message: Job | Task) -> tuple[str, Any]:
        self.worker, said = answer(self.worker, message)
        return said


class _Actor:
    """One worker under Ray; it gets its job with its first task."""

    def __init__(
        self, ray: Any, job: Callable[[], Job], begun: Callable[[int], None], how: dict[str, Any]
    ) -> None:
        self._ray, self._job, self._begun = ray, job, begun
        self._actor = ray.remote(_Seat).options(**how).remote()
        self._ready = False

    def do(self, task: Task) -> Any:
        if not self._ready:
            self._ask(self._job())
            self._ready = True
            self._begun(self._get(self._actor.process.remote()))
        return self._ask(task)

    def end(self) -> None:
        self._ray.kill(self._actor)

    def _ask(self, message: Job | Task) -> Any:
        return answer_of(*self._get(self._actor.ask.remote(message)))

    def _get(self, promise: Any) -> Any:
        try:
            return self._ray.get(promise)
        except self._ray.exceptions.RayActorError as error:
            raise Lost("a Ray actor that is no longer there") from error
