"""The fits of many layers made at once on a GPU, for parts that other processes then finish.

A layer's fits are hundreds of short steps, and a short step takes a GPU the time of starting its
kernels. So one process makes the fits of all layers there, and the others count.
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

from anchorscope.probes.curvature import Array, to_numpy
from anchorscope.probes.fit_process import FitProcess
from anchorscope.probes.many_fits import Made, Request, fit_many

Result = TypeVar("Result")
_PROCESS: ContextVar[FitProcess | None] = ContextVar("fits_on", default=None)
# Of states in double precision at once: a share of the GPU's memory, most of which the passes of a
# model have; the fits take about four times as much. Not of what is free, so that two runs on like
# GPUs fit alike.
_SHARE, _BYTES = 64, 2**28
CORES = "cores"  # in run.json, where a GPU was to make fits and could not make all of them
There = Callable[[np.ndarray], Array]  # the same numbers on the device, in double precision
Ask = Callable[[int], tuple[np.ndarray, Request | None]]  # of a layer: its states, and the fits


@contextmanager
def fits_on(device: str | None) -> Iterator[None]:
    """`fits_of_layers` makes fits on the device, in a process of their own; None: it makes none.

    Holds for this thread and for those that take over its context.
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
    """The device that made the fits; `cores` where it could not make all; None: nobody asked it."""
    process = _PROCESS.get()
    if process is None:
        return None
    return CORES if process.lacking else process.device


def stop_fits() -> None:
    """Ends the process that makes fits; who waits for one makes it alone."""
    process = _PROCESS.get()
    if process is not None:
        process.stop()


def fits_of_layers(ask: Ask, layers: Sequence[int]) -> dict[int, Made]:
    """The fits of each layer that `ask` tells of, [fit, width] and [fit], by layer.

    Empty where no GPU is to make them, where it has no memory left, or where states are no numbers:
    then whoever needs the fits of a layer makes them, or says what is wrong.
    """

    def fits(there: There, most: int) -> Iterator[tuple[int, Made]]:
        for chunk in _chunks(ask, layers, most):
            yield from _fit(there, chunk).items()

    return _on_device(fits)


def of_layers(
    work: Callable[[There, int], np.ndarray], layers: Sequence[int]
) -> dict[int, np.ndarray]:
    """What `work` makes of each layer with tensors that are `there`; empty likewise."""
    return _on_device(lambda there, _: ((layer, work(there, layer)) for layer in layers))


def side_by_side(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """What each work gives that may ask for fits; they wait for them at the same time."""
    if _PROCESS.get() is None or len(works) < 2:
        return [work() for work in works]
    with ThreadPoolExecutor(len(works), current_thread().name) as pool:
        begun = [pool.submit(copy_context().run, work) for work in works]
        return [of.result() for of in begun]


def _on_device(work: Callable[[There, int], Iterable[tuple[int, Any]]]) -> dict[int, Any]:
    process = _PROCESS.get()
    if process is None:
        return {}
    device = process.device
    return process.made(lambda: dict(work(partial(_to, device), _most(device)))) or {}


def _most(device: str) -> int:
    """The bytes of states that are fitted at once."""
    import torch

    if torch.device(device).type != "cuda":
        return _BYTES
    return torch.cuda.get_device_properties(device).total_memory // _SHARE


def _chunks(
    ask: Ask, layers: Sequence[int], most: int
) -> Iterator[dict[int, tuple[np.ndarray, Request]]]:
    """States and requests of layers that go together: as many questions, and not too many bytes."""
    chunk: dict[int, tuple[np.ndarray, Request]] = {}
    for layer in layers:
        states, request = ask(layer)
        if request is None:
            continue
        alike = all(of.shape == states.shape for of, _ in chunk.values())
        if not alike or 8 * states.size * (len(chunk) + 1) > most:
            yield from [chunk] if chunk else []
            chunk = {}
        chunk[layer] = states, request
    yield from [chunk] if chunk else []


def _fit(there: There, chunk: Mapping[int, tuple[np.ndarray, Request]]) -> dict[int, Made]:
    """The fits of layers whose states have one shape."""
    requests = [request for _, request in chunk.values()]
    most = max(len(request.C) for request in requests)
    states = there(np.stack([states for states, _ in chunk.values()]))
    padded = [np.stack(of) for of in zip(*(_padded(of, most) for of in requests), strict=True)]
    coefficients, intercept = map(to_numpy, fit_many(states, *map(there, padded)))
    counts = (len(request.C) for request in requests)
    return {
        layer: (of[:count], shift[:count])
        for layer, of, shift, count in zip(chunk, coefficients, intercept, counts, strict=True)
    }


def _padded(request: Request, most: int) -> Request:
    """The request with fits that have converged before their first step, `most` in all.

    Layers may ask for different numbers of fits: a class may be too small in one of them.
    """
    more = ((0, most - len(request.C)), (0, 0))
    return Request(
        y=np.pad(request.y, more, constant_values=0.5),
        weights=np.pad(request.weights, more, constant_values=1.0),
        C=np.pad(request.C, more[0], constant_values=1.0),
    )


def _to(device: str, of: np.ndarray) -> Array:
    """The numbers in double precision on the device, to which they travel as they are stored."""
    import torch

    return torch.from_numpy(of).to(device).double()
