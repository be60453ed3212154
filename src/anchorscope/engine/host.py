"""States from the device to the host: in half precision wherever their range allows it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_HALF_MAX = torch.finfo(torch.float16).max


def to_host(states: Tensor) -> np.ndarray:
    """The states as an array on the host, float16, or float32 where a value is beyond its range.

    Halved on the device, so that half as many bytes leave it.
    """
    # Written so that a NaN, which no comparison holds for, keeps its full precision too.
    fits = bool((states.abs() < _HALF_MAX).all())
    half = states.to(torch.float16 if fits else torch.float32)
    if half.device.type != "cuda":
        return half.cpu().numpy()
    host = torch.empty(half.shape, dtype=half.dtype, pin_memory=True)
    host.copy_(half)
    return host.numpy()
