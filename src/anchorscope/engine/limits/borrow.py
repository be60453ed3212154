"""A model is lent to one `with` block at a time; another thread waits for it."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from anchorscope.errors import UserError

_LOCKS: WeakKeyDictionary[nn.Module, threading.Lock] = WeakKeyDictionary()
_HOLDERS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()


def borrow(lm: nn.Module) -> Any:
    """Waits until no other thread has the model; gives what lets go of it again."""
    lock = _LOCKS.setdefault(lm, threading.Lock())
    if lock.locked() and _HOLDERS.get(lm) == threading.get_ident():
        raise UserError(
            "This model is in use by another `with Lease(...)` of the same thread. "
            "End that one first: two at once would undo each other."
        )
    lock.acquire()
    _HOLDERS[lm] = threading.get_ident()
    return lock.release
