"""A process of its own that makes fits on a GPU while the model reads there.

In the reader's process the two would wait for each other: both are short steps of Python between
kernels, and one thread has Python at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from joblib.externals.loky import BrokenProcessPool, ProcessPoolExecutor
from joblib.externals.loky.process_executor import ShutdownExecutorError

from anchorscope.parallel import follow

Result = TypeVar("Result")
_ROOM = 2**31  # bytes of the GPU that must be free beside what the model's passes hold


class FitProcess:
    """The process, from its first use to the end of the `with` block.

    `made` may be asked by several threads; one thing is done at a time.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._executor = ProcessPoolExecutor(max_workers=1)
        self._begun: Future[bool] | None = None

    def __enter__(self) -> FitProcess:
        self._begun = self._executor.submit(_begin, self.device, os.getpid())
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        self._executor.shutdown(wait=False, kill_workers=True)

    def made(self, work: Callable[[], Result]) -> Result | None:
        """What `work` gives there; None where the process or its GPU cannot do it."""
        try:
            begun = self._begun is not None and self._begun.result()
            return self._executor.submit(_done, work).result() if begun else None
        except (BrokenProcessPool, ShutdownExecutorError):  # killed, or stopped
            return None


def _begin(device: str, parent: int) -> bool:
    """Whether fits can be made on the device: it takes a second process, and has room for it."""
    follow(parent)
    import torch

    torch.set_num_threads(1)
    try:
        torch.zeros(1, device=device)
        return torch.device(device).type != "cuda" or torch.cuda.mem_get_info(device)[0] > _ROOM
    except (RuntimeError, AssertionError):  # no such GPU, or one process has it to itself
        return False


def _done(work: Callable[[], Result]) -> Result | None:
    """What `work` gives; None where memory runs out, or states are no numbers."""
    import torch

    error: Any = (torch.OutOfMemoryError, torch.linalg.LinAlgError)  # type: ignore[reportPrivateImportUsage]
    try:
        return work()
    except error:
        return None
