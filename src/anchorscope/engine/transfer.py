"""Copy tensors between the host and a GPU without waiting for the GPU's other work.

A plain copy waits until the GPU has done all its work. So Python would wait while the GPU works,
and then the GPU while Python prepares the next pass.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_HALF_MAX = torch.finfo(torch.float16).max


def to_device(numbers: np.ndarray | Sequence[int] | Sequence[bool], device: torch.device) -> Tensor:
    """Copy numbers to a device as a tensor, without waiting for the copy."""
    tensor = torch.from_numpy(np.asarray(numbers))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(states: Tensor) -> np.ndarray:
    """Copy states to the host as float16, or as float32 where a value is beyond its range.

    Converted on the device, so that half as many bytes are copied.
    """
    return HostCopy(states).array()


class HostCopy:
    """An asynchronous copy of states to the host, in the dtypes of `to_host`.

    Until `array` or `settle` is called the states stay on the GPU as well.
    """

    def __init__(self, states: Tensor) -> None:
        self._states: Tensor | None = states
        self._lock = threading.Lock()  # a thread that writes files may call this as well
        # A NaN fails this comparison, so states with one are kept in full precision too.
        fits = (states.abs() < _HALF_MAX).all()
        self._copied: torch.cuda.Event | None = None
        if states.device.type == "cuda":
            self._half, self._fits = _start_copy(states.to(torch.float16)), _start_copy(fits)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(states.device))
        else:
            self._half, self._fits = states.to(torch.float16).cpu(), fits.cpu()
            self.settle()

    def settle(self) -> None:
        """Wait for the copy, and release the states on the GPU."""
        with self._lock:
            if self._states is None:
                return
            if self._copied is not None:
                self._copied.synchronize()
            if not self._fits:
                self._half = self._states.float().cpu()
            self._states = None

    def array(self) -> np.ndarray:
        """The states on the host, once they have arrived."""
        self.settle()
        return self._half.numpy()


def _start_copy(tensor: Tensor) -> Tensor:
    """Start an asynchronous copy of a GPU tensor into pinned host memory."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
