"""Run the same work for many layers or folds in parallel processes.

A fit alternates short steps of a solver with Python code, so threads would wait for one another.
Large arrays are passed as files in shared memory.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import joblib
import loky.process_executor

# The copy of loky inside joblib is the one that joblib's own pool runs in.
from joblib.externals.loky import get_reusable_executor, process_executor
from threadpoolctl import threadpool_limits

from anchorscope.errors import UserError

OnDone = Callable[[int, int], None]  # items done, items in all
Item = TypeVar("Item")
Result = TypeVar("Result")
# Each worker holds one layer in double precision a few times over: about 300 MB for 2,000
# questions of width 5,120.
MAX_WORKERS = 16
_LOOK = 0.5  # seconds between two checks that the parent is alive
_inside = False  # whether this process is a worker, which starts no workers of its own


def in_parallel(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    workers: int | None = None,
    progress: OnDone | None = None,
) -> list[Result]:
    """Apply `work` to every item in several processes; return the results in the items' order.

    Raises a UserError where a process is killed, for example because memory ran out.
    """
    # The same number at every call: joblib ends its processes and starts others where it changes.
    count = 1 if _inside or len(items) < 2 else workers or default_workers()
    parent, folder = os.getpid(), os.getcwd()
    jobs = (joblib.delayed(_do)(work, item, parent, folder) for item in items)
    results = []
    try:
        for result in joblib.Parallel(count, return_as="generator")(jobs):
            results.append(result)
            if progress is not None:
                progress(len(results), len(items))
    except BrokenProcessPool as error:
        raise UserError(
            f"A process of the analysis was killed, most likely because memory ran out: {count} "
            "worked at a time. What was finished is kept: free memory, or set the environment "
            "variable LOKY_MAX_CPU_COUNT to a smaller number, and run the same command again."
        ) from error
    return results


def default_workers() -> int:
    """The number of cores that this process may use, at most MAX_WORKERS."""
    return min(joblib.cpu_count(), MAX_WORKERS)


def end_workers() -> None:
    """End the processes that `in_parallel` keeps for its next call."""
    get_reusable_executor().shutdown(wait=True)


def _do(work: Callable[[Item], Result], item: Item, parent: int, folder: str) -> Result:
    """Process one item, in a worker or, where no workers are used, in the parent."""
    global _inside
    if os.getpid() != parent:
        if not _inside:
            begin_own_process(parent)
        _inside = True
        os.chdir(folder)  # a worker outlives the call that started it, and the caller may move on
    # One BLAS thread each: the other cores have their own item, and a sum must not depend on the
    # number of threads.
    with threadpool_limits(limits=1, user_api="blas"):
        return work(item)


def begin_own_process(parent: int) -> None:
    """Set up a worker process that ends with its parent and that loky does not restart."""
    if os.getppid() == parent:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends us
    # loky replaces a worker that holds 300 MB more than after its first call: wide states reach
    # that with every layer, and a model would have to be loaded again.
    process_executor._USE_PSUTIL = loky.process_executor._USE_PSUTIL = False


def _end_with(parent: int) -> None:
    """End this worker process once its parent has died.

    Linux's own signal for this (PR_SET_PDEATHSIG) is sent when the thread that started a worker
    ends, and a worker may outlive that thread.
    """
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)
