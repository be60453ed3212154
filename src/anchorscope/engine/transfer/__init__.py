"""Numbers on their way between the host and a GPU, which goes on with its work meanwhile.

A plain copy waits until the GPU has done everything it was asked for before. So Python would stand
still while the GPU works, and then the GPU while Python prepares the next pass.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_HALF_MAX = torch.finfo(torch.float16).max


def sent(numbers: np.ndarray | Sequence[int] | Sequence[bool], device: torch.device) -> Tensor:
    """The numbers as a tensor on a device; nobody waits for them to be there."""
    tensor = torch.from_numpy(np.asarray(numbers))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(states: Tensor) -> np.ndarray:
    """The states as an array on the host, float16, or float32 where a value is beyond its range.

    Halved on the device, so that half as many bytes leave it.
    """
    return Arriving(states).array()


class Arriving:
    """States that come to the host as `to_host` gives them, as soon as a GPU has made them.

    Until `array` or `settle` was asked for they lie on the GPU as well.
    """

    def __init__(self, states: Tensor) -> None:
        self._states: Tensor | None = states
        self._lock = threading.Lock()  # who writes files may ask as well
        # Written so that a NaN, which no comparison holds for, keeps its full precision too.
        fits = (states.abs() < _HALF_MAX).all()
        self._there: torch.cuda.Event | None = None
        if states.device.type == "cuda":
            self._half, self._fits = _begun(states.to(torch.float16)), _begun(fits)
            self._there = torch.cuda.Event()
            self._there.record(torch.cuda.current_stream(states.device))
        else:
            self._half, self._fits = states.to(torch.float16).cpu(), fits.cpu()
            self.settle()

    def settle(self) -> None:
        """Waits until they are here, and lets go of those on the GPU."""
        with self._lock:
            if self._states is None:
                return
            if self._there is not None:
                self._there.synchronize()
            if not self._fits:
                self._half = self._states.float().cpu()
            self._states = None

    def array(self) -> np.ndarray:
        """The states, once they are here."""
        self.settle()
        return self._half.numpy()


def _begun(of: Tensor) -> Tensor:
    """Memory of the host that a GPU writes a tensor to when it has made it."""
    return torch.empty(of.shape, dtype=of.dtype, pin_memory=True).copy_(of, non_blocking=True)
