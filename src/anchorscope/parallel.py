"""The same work for many layers or folds, each in a process of its own; and one beside this one.

A fit is many short steps of a solver with as much Python between them, so threads wait for one
another. Large arrays are handed over as files in shared memory.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import joblib
from joblib.externals.loky import (
    BrokenProcessPool,
    ProcessPoolExecutor,
    get_reusable_executor,
    process_executor,
)
from joblib.externals.loky.process_executor import ShutdownExecutorError
from threadpoolctl import threadpool_limits

from anchorscope.errors import UserError

OnDone = Callable[[int, int], None]  # items done, items in all
Item = TypeVar("Item")
Result = TypeVar("Result")
# Each worker holds one layer in double precision a few times over: about 300 MB for 2,000
# questions of width 5,120.
MAX_WORKERS = 16
_GONE = (BrokenProcessPool, ShutdownExecutorError)
_LOOK = 0.5  # seconds between two looks whether the parent is alive
_inside = False  # whether this process is a worker, which starts no workers of its own
_there = 0  # processes that the last work was given to


def in_parallel(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    workers: int | None = None,
    progress: OnDone | None = None,
) -> list[Result]:
    """What `work` gives for every item, in their order; several at a time.

    A process that is killed from outside, as by a system short of memory, is a UserError.
    """
    count = _count(workers or default_workers(), len(items))
    here = {"asked_by": os.getpid(), "folder": os.getcwd()}
    jobs = (joblib.delayed(_alone)(work, item, **here) for item in items)
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


def _count(most: int, items: int) -> int:
    """How many processes do the work: those that are there, where no more than `most` are.

    Fewer would be others: joblib gives each more threads for arithmetic, which it is told when it
    starts, and ends those that were told otherwise.
    """
    global _there
    count = 1 if _inside else min(most, max(1, items))
    if 1 < count < _there <= most:
        return _there
    _there = count if count > 1 else _there
    return count


def stop_workers() -> None:
    """Ends the processes, whatever they do; a call under way in another thread fails."""
    _shut_down(kill_workers=True)


def dismiss_workers() -> None:
    """Lets the processes end by themselves; nobody waits for them, and the next call starts others.

    They would stay for minutes, with all they have imported, and this process ends no sooner.
    """
    _shut_down(wait=False)


def _shut_down(**how: bool) -> None:
    global _there
    _there = 0
    as_it_is: dict[str, Any] = {"reuse": True}
    get_reusable_executor(**as_it_is).shutdown(**how)


def default_workers() -> int:
    """The cores this process may use, not all there are, and no more than MAX_WORKERS."""
    return min(joblib.cpu_count(), MAX_WORKERS)


def _alone(work: Callable[[Item], Result], item: Item, *, asked_by: int, folder: str) -> Result:
    global _inside
    if os.getpid() != asked_by:
        if not _inside:
            follow(asked_by)
        _inside = True
        os.chdir(folder)  # a worker outlives the call that started it, and the caller may move on
    # One arithmetic thread each: the other cores have their own item, and a sum must not depend
    # on how many there are.
    with threadpool_limits(limits=1, user_api="blas"):
        return work(item)


class OwnProcess:
    """One process beside this one, or `count`, for what is given in turn.

    They end with the `with` block.
    """

    def __init__(self, count: int = 1) -> None:
        begin = partial(begin_own_process, os.getpid())
        self._executor = ProcessPoolExecutor(max_workers=count, initializer=begin)

    def __enter__(self) -> OwnProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        self._executor.shutdown(wait=False, kill_workers=True)

    def begin(self, work: Callable[[], Result]) -> Callable[[], Result | None]:
        """What waits for the work and gives its result; None where the process is no more."""
        try:
            future = self._executor.submit(work)
        except _GONE:
            return lambda: None

        def result() -> Result | None:
            try:
                return future.result()
            except _GONE:  # stopped; or killed, as by a system that is short of memory
                return None

        return result


def begin_own_process(parent: int) -> None:
    """Begin a process that keeps what it holds, and ends with its parent."""
    follow(parent)
    # loky ends a worker that holds 300 MB more than after its first call, and starts another. What
    # this one holds, a model, it would have to make again.
    process_executor._USE_PSUTIL = False


def follow(parent: int) -> None:
    """Leaves it to the parent to end this process: on Ctrl-C, and when it is no more."""
    if os.getppid() == parent:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends us


def _end_with(parent: int) -> None:
    """Ends this worker soon after its parent, which was killed: nobody hears of its results.

    It would finish its item, which may write figures, and then wait five minutes for the next one.
    The system's own signal (PR_SET_PDEATHSIG) comes when the thread ends that started a worker,
    and a worker may outlive that.
    """
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)
