"""Thousands of small values at once: every core for a tokenizer, and no search for garbage."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PARALLEL = "TOKENIZERS_PARALLELISM"
_MANY = 256  # texts: fewer are done before the threads have begun
_ours = False  # whether the variable was set here, and not by the user


def settle_tokenizers() -> None:
    """Tells tokenizers, once, to use one core; what the user has set stays.

    Where nobody told it anything, versions of it warn of processes started after it used several.
    """
    global _ours
    if _PARALLEL not in os.environ:
        os.environ[_PARALLEL] = "false"
        _ours = True


@contextmanager
def all_cores(texts: int) -> Iterator[None]:
    """Every core for a tokenizer that codes so many texts, unless the user settled it otherwise.

    tokenizers reads the variable at every batch. Set back, it holds for processes started later.
    """
    if not _ours or texts < _MANY:
        yield
        return
    os.environ[_PARALLEL] = "true"
    try:
        yield
    finally:
        os.environ[_PARALLEL] = "false"


def end_soon() -> None:
    """Lets this process end without a last search for garbage through all that it has imported.

    It takes seconds, and the memory goes back in any case.
    """
    atexit.unregister(_leave_all)
    atexit.register(_leave_all)


def _leave_all() -> None:
    gc.disable()
    gc.freeze()


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for garbage while values are made that all stay.

    Python looks at every one of them again and again to find those that hold each other in a
    circle, and there are none.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextmanager
def imported() -> Iterator[None]:
    """The same while modules are imported, and no search among what they hold ever after.

    Half a million objects, which all stay: a search through them takes a fifth of a second. Where
    nothing was left to import, what is garbage by now may still be found.
    """
    known = len(sys.modules)
    with uncollected():
        yield
    if len(sys.modules) > known:
        gc.freeze()
