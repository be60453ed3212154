"""What this machine gives each worker: GPUs of its own, or a share of the cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import joblib
import torch

from anchorscope.config import Config
from anchorscope.errors import UserError

_ON_GPUS = ("auto", "cuda", "balanced")


def check_spread(config: Config, model: Any) -> None:
    """An error where the options that spread a run do not go together."""
    spread = [n for n in ("workers", "ray", "rank") if getattr(config, n) is not None]
    if (config.rank is None) != (config.world_size is None):
        raise UserError("--rank and --world-size go together: give both, or neither.")
    if config.rank is not None and not 0 <= config.rank < (config.world_size or 0):
        raise UserError(
            f"--rank is {config.rank} of {config.world_size}. Accepted: 0 to the world size less 1."
        )
    if config.rank is not None and len(spread) > 1:
        raise UserError("--rank is for one process: leave out --workers and --ray.")
    if (
        spread
        and spread != ["rank"]
        and model is not None
        and not isinstance(model, str | os.PathLike)
    ):
        raise UserError(
            "A loaded model was given together with workers, and each loads the model itself. "
            "Give its name, folder or file instead."
        )
    for name in ("workers", "threads", "gpus_per_worker"):
        if (value := getattr(config, name)) is not None and value < 1:
            raise UserError(f"{name} is {value}. Accepted: 1 or more.")


def environment_of(config: Config, place: int, count: int) -> dict[str, str]:
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
    own = gpus[place * each : (place + 1) * each]
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)}


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


def set_threads(config: Config, info: Mapping[str, Any]) -> None:
    """Takes as many threads as are asked for, else as the run began with."""
    threads = config.threads or info.get("model", {}).get("threads")
    if threads:
        torch.set_num_threads(int(threads))


@contextmanager
def as_begun(config: Config, info: Mapping[str, Any]) -> Iterator[None]:
    """As many threads as the run began with: the order of sums depends on it.

    What is asked for now stands above that.
    """
    before = torch.get_num_threads()
    set_threads(config, info)
    try:
        yield
    finally:
        torch.set_num_threads(before)
