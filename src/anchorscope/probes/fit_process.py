"""Processes of their own that make fits on a GPU while the model reads there.

In the reader's process the two would wait for each other: both are short steps of Python between
kernels, and one thread has Python at a time. One process alone would keep the others waiting: half
of its time it opens states.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from anchorscope.parallel import OwnProcess

Result = TypeVar("Result")
_COUNT = 2
_ROOM = 2**32  # bytes of the GPU that must be free beside what the model's passes hold


class FitProcess:
    """The processes, until the `with` block ends.

    Several threads may ask them; each does one thing at a time.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.lacking = False  # whether something was asked for that it could not make
        self._process = OwnProcess(_COUNT)

    def __enter__(self) -> FitProcess:
        begin = self._process.__enter__().begin
        self._can = [begin(partial(_can_fit, self.device)) for _ in range(_COUNT)]
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the processes, whatever they do."""
        self._process.stop()

    def made(self, work: Callable[[], Result]) -> Result | None:
        """What `work` gives there; None where the processes or their GPU cannot do it."""
        can = all(of() for of in self._can)
        made = self._process.begin(partial(_done, work))() if can else None
        self.lacking |= made is None
        return made


def _can_fit(device: str) -> bool:
    """Whether fits can be made on the device: it takes a second process, and has room for it."""
    import torch

    try:
        torch.zeros(1, device=device)
        return torch.device(device).type != "cuda" or torch.cuda.mem_get_info(device)[0] > _ROOM
    except (RuntimeError, AssertionError):  # no such GPU, or one process has it to itself
        return False


def _done(work: Callable[[], Result]) -> Result | None:
    """What `work` gives; None where memory runs out, or states are no numbers."""
    import torch

    torch.set_num_threads(1)
    try:
        return work()
    except (torch.OutOfMemoryError, torch.linalg.LinAlgError):  # type: ignore[reportPrivateImportUsage]
        return None
