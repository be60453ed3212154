"""Files written one after the other while the next batch is computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from anchorscope import ranks


class Writer:
    """Does what it is given in order, in a thread of its own; an error comes out at the next wait.

    Of several processes that share a model each writes at once: there every file is a meeting, and
    two threads would mix them up.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "writer") if ranks.count() == 1 else None
        self._waiting: list[Future[object]] = []
        self._failed = False

    def soon(self, work: Callable[[], object]) -> None:
        """Does the work after what was given before."""
        if self._pool is None:
            work()
        else:
            self._waiting.append(self._pool.submit(self._do, work))

    def wait(self) -> None:
        """Returns when everything is done; raises what went wrong first."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.result()

    def close(self) -> None:
        """Waits for everything, and ends the thread."""
        try:
            self.wait()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)

    def _do(self, work: Callable[[], object]) -> None:
        """Does the work, unless an earlier one failed: a file may vouch for those before it."""
        if self._failed:
            return
        try:
            work()
        except BaseException:
            self._failed = True
            raise
