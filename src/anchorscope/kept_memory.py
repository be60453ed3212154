"""Memory that was freed stays with the process for a while, instead of being asked for anew.

Every block of every pass takes and frees the same large arrays. Where each goes back to the system,
it comes back page by page, filled with zeros (benchmarks/kept_memory.py).
"""

from __future__ import annotations

import ctypes
import os
import platform

_DELAY = "MIMALLOC_PURGE_DELAY"
_MINUTE = "60000"  # milliseconds
_TRIM, _MAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_TOP = 1 << 30  # bytes that may lie free at the end of the heap
_LARGEST = 32 << 20  # bytes of an array of the heap; no more can be asked for
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> None:
    """Has this process keep what it frees; what the user has set in the environment stays.

    Before torch is imported: on ARM it has an allocator of its own (mimalloc), which reads the
    variable once and otherwise gives everything back after 10 ms.
    """
    os.environ.setdefault(_DELAY, _MINUTE)
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _CHOSEN):
        return
    # glibc's own bounds follow the arrays it has seen, and so every run's first batches.
    libc = ctypes.CDLL(None)
    libc.mallopt(_TRIM, _TOP)
    libc.mallopt(_MAP, _LARGEST)
