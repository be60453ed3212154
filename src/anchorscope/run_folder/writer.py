"""Files written while the next batch is computed, and in order where one vouches for another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

_AT_ONCE = 3  # files: a checksum and a copy to the disk keep a core busy each


class Writer:
    """Does what it is given in order, in its own threads; an error comes out at the next wait."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "writer")
        self._files = ThreadPoolExecutor(_AT_ONCE, "files")
        self._waiting: list[Future[object]] = []
        self._failed = False

    def soon(self, *works: Callable[[], object]) -> None:
        """Does the works, some at a time, after what was given before."""
        self._waiting.append(self._pool.submit(self._do, works))

    def wait(self) -> None:
        """Returns when everything is done; raises what went wrong first."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.result()

    def close(self) -> None:
        """Waits for everything, and ends the threads."""
        try:
            self.wait()
        finally:
            self._pool.shutdown(cancel_futures=True)
            self._files.shutdown()

    def _do(self, works: Sequence[Callable[[], object]]) -> None:
        """Does the works, unless an earlier one failed: a file may vouch for those before it."""
        if self._failed:
            return
        under_way = [self._files.submit(work) for work in works]
        wait(under_way)
        self._failed = any(work.exception() for work in under_way)
        for work in under_way:
            work.result()
