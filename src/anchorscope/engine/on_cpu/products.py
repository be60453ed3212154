"""Which library multiplies matrices on a CPU.

torch gives products to oneDNN where it can. On ARM cores without bfloat16 (Neoverse-N1) its
single-precision products take longer than those of the BLAS that torch has as well, most of all
those of few rows (benchmarks/products.py). On processors with bfloat16 it
has kernels that the BLAS lacks, so there nothing is changed. The choice follows from the processor
and the dtype alone: two runs on like machines must multiply alike, to the last bit.
"""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from anchorscope.models.device import cpu_has_bfloat16

_LOCK = threading.Lock()
_users = 0  # `with` blocks under way, in all threads: the flag is the whole process's
_before = True


def wins_without_onednn(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies numbers of a dtype sooner without oneDNN."""
    arm = platform.machine().lower() in ("aarch64", "arm64") and sys.platform == "linux"
    return arm and dtype == torch.float32 and not cpu_has_bfloat16()


@contextmanager
def without_onednn() -> Iterator[None]:
    """Torch without oneDNN, until the last of these blocks ends."""
    global _users, _before
    with _LOCK:
        if not _users:
            _before = bool(torch.backends.mkldnn.enabled)
            _switch(on=False)
        _users += 1
    try:
        yield
    finally:
        with _LOCK:
            _users -= 1
            if not _users:
                _switch(on=_before)


def _switch(*, on: bool) -> None:
    # Not `flags()`, which sets TF32 as well, with a warning.
    torch.backends.mkldnn.enabled = on  # pyright: ignore[reportAttributeAccessIssue]
