"""Memory that runs out in one of several processes runs out in all of them.

Processes that share a model meet in every block, where they add up what each computed. One that
ran out of memory on the way would never come, and the others would wait for it. So before each
such meeting they say over the network that they are well; the one that is not says so instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from anchorscope import ranks

_MEETINGS = ("c10d", "_c10d_functional", "c10d_functional")


class _ElsewhereOut(torch.OutOfMemoryError):
    """Another process ran out of memory."""


class _Meetings(TorchDispatchMode):
    """Asks the other processes how they are before each operation that needs all of them."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # it becomes operations on plain tensors, which come here too
        if func.namespace in _MEETINGS and "wait_tensor" not in func.name():
            _meet()
        return func(*args, **(kwargs or {}))


def _meet() -> None:
    if not ranks.least(1):
        raise _ElsewhereOut


@contextmanager
def together() -> Iterator[None]:
    """All processes get through the block, or all of them run out of memory."""
    if ranks.count() == 1:
        yield
        return
    try:
        with _Meetings():
            yield
        _meet()
    except _ElsewhereOut:
        raise
    except Exception:
        ranks.least(0)
        raise
