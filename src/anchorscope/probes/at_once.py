"""Make the fits of many layers at once on a GPU, in processes of their own.

A layer's fits are hundreds of short steps, and a short step takes a GPU the time of starting its
kernels. So the fits of all layers are made there together, and the processes that analyse layers
take them over. In the model's own process fits and passes would wait for each other: both are short
steps of Python between kernels. One fitting process would idle half of its time, while it opens
states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from threading import current_thread
from typing import Any, TypeVar

import numpy as np

from anchorscope.parallel import OwnProcess
from anchorscope.probes.many_fits import Array, Made, Request, fit_many, to_numpy

Result = TypeVar("Result")
There = Callable[[np.ndarray], Array]  # the same numbers on the device, in double precision
Ask = Callable[[int], tuple[np.ndarray, Request | None]]  # layer -> its states, and the fits
CORES = "cores"  # in run.json, where a GPU was to make fits and could not make all of them
_COUNT = 2  # processes
_ROOM = 2**32  # bytes of the GPU that must be free beside what the model's passes hold
# Bytes of states in double precision that are fitted at once: a share of the GPU's memory, most of
# which the model's passes have; the fits take about four times as much. A share of what is free
# would let two runs on like GPUs fit differently.
_SHARE, _BYTES = 64, 2**28


class FitProcess:
    """The processes that make fits on a device, until the `with` block ends.

    Several threads may use them; each process does one thing at a time.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.lacking = False  # whether some work could not be done there
        self._process = OwnProcess(_COUNT)

    def __enter__(self) -> FitProcess:
        begin = self._process.__enter__().begin
        self._can_fit = [begin(partial(_can_fit, self.device)) for _ in range(_COUNT)]
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the processes, whatever they are doing."""
        self._process.stop()

    def made(self, work: Callable[[], Result]) -> Result | None:
        """The result of `work` there; None where the processes or their GPU cannot do it."""
        able = all(can_fit() for can_fit in self._can_fit)
        result = self._process.begin(partial(_result_or_none, work))() if able else None
        self.lacking |= result is None
        return result


_PROCESS: ContextVar[FitProcess | None] = ContextVar("fits_on", default=None)


@contextmanager
def fits_on(device: str | None) -> Iterator[None]:
    """Let `fits_of_layers` and `of_layers` use a device in this block; None: they return nothing.

    Holds for this thread and for those that copy its context.
    """
    if device is None:
        yield
        return
    with FitProcess(device) as process:
        before = _PROCESS.set(process)
        try:
            yield
        finally:
            _PROCESS.reset(before)


def fitted_on() -> str | None:
    """The device that made the fits; `cores` where it could not make all; None without one."""
    process = _PROCESS.get()
    if process is None:
        return None
    return CORES if process.lacking else process.device


def stop_fits() -> None:
    """End the processes that make fits; their callers then get none."""
    process = _PROCESS.get()
    if process is not None:
        process.stop()


def fits_of_layers(ask: Ask, layers: Sequence[int]) -> dict[int, Made]:
    """The fits that `ask` names for each layer, [fit, width] and [fit], by layer.

    Empty without a GPU, where its memory is full, or where states are not finite: then the caller
    makes the fits of a layer, or says what is wrong.
    """

    def fits(there: There, most: int) -> Iterator[tuple[int, Made]]:
        for chunk in _chunks(ask, layers, most):
            yield from _fit(there, chunk).items()

    return _on_device(fits)


def of_layers(
    work: Callable[[There, int], np.ndarray], layers: Sequence[int]
) -> dict[int, np.ndarray]:
    """The result of `work` on tensors that are `there`, by layer; empty in the same cases."""
    return _on_device(lambda there, _: ((layer, work(there, layer)) for layer in layers))


def side_by_side(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of works that may wait for fits, all of them at the same time."""
    if _PROCESS.get() is None or len(works) < 2:
        return [work() for work in works]
    with ThreadPoolExecutor(len(works), current_thread().name) as pool:
        begun = [pool.submit(copy_context().run, work) for work in works]
        return [future.result() for future in begun]


def _can_fit(device: str) -> bool:
    """Whether the device takes another process and has room for it."""
    import torch

    try:
        torch.zeros(1, device=device)
        return torch.device(device).type != "cuda" or torch.cuda.mem_get_info(device)[0] > _ROOM
    except (RuntimeError, AssertionError):  # no such GPU, or one process has it to itself
        return False


def _result_or_none(work: Callable[[], Result]) -> Result | None:
    """The result of `work`; None where memory runs out or states are not finite."""
    import torch

    torch.set_num_threads(1)
    try:
        return work()
    except (torch.OutOfMemoryError, torch.linalg.LinAlgError):  # type: ignore[reportPrivateImportUsage]
        return None


def _on_device(work: Callable[[There, int], Iterable[tuple[int, Any]]]) -> dict[int, Any]:
    process = _PROCESS.get()
    if process is None:
        return {}
    device = process.device
    return process.made(lambda: dict(work(partial(_to, device), _most(device)))) or {}


def _to(device: str, values: np.ndarray) -> Array:
    """The numbers in double precision on the device, to which they travel as they are stored."""
    import torch

    return torch.from_numpy(values).to(device).double()


def _most(device: str) -> int:
    """The bytes of states that are fitted at once."""
    import torch

    if torch.device(device).type != "cuda":
        return _BYTES
    return torch.cuda.get_device_properties(device).total_memory // _SHARE


def _chunks(
    ask: Ask, layers: Sequence[int], most: int
) -> Iterator[dict[int, tuple[np.ndarray, Request]]]:
    """Layers that are fitted together: states of one shape, of `most` bytes in all."""
    chunk: dict[int, tuple[np.ndarray, Request]] = {}
    for layer in layers:
        states, request = ask(layer)
        if request is None:
            continue
        alike = all(other.shape == states.shape for other, _ in chunk.values())
        if chunk and not (alike and 8 * states.size * (len(chunk) + 1) <= most):
            yield chunk
            chunk = {}
        chunk[layer] = states, request
    if chunk:
        yield chunk


def _fit(there: There, chunk: Mapping[int, tuple[np.ndarray, Request]]) -> dict[int, Made]:
    """The fits of layers whose states have one shape.

    Layers may have different numbers of fits, where a class is too small in one of them: they are
    filled up with fits of y = 1/2, which have converged before their first step.
    """
    requests = [request for _, request in chunk.values()]
    most = max(len(request.C) for request in requests)
    fill = Request(y=0.5, weights=1.0, C=1.0)  # type: ignore[arg-type]
    padded = [
        np.stack([
            np.pad(part, [(0, most - len(part)), (0, 0)][: part.ndim], constant_values=value)
            for part in parts
        ])
        for parts, value in zip(zip(*requests, strict=True), fill, strict=True)
    ]  # fmt: skip
    states = there(np.stack([states for states, _ in chunk.values()]))
    coefficients, intercept = map(to_numpy, fit_many(states, *map(there, padded)))
    return {
        layer: (coefficients[place, : len(request.C)], intercept[place, : len(request.C)])
        for place, (layer, (_, request)) in enumerate(chunk.items())
    }
