"""Write files in background threads while the next batch is computed, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

_AT_ONCE = 3  # files: a checksum and a copy to the disk keep a core busy each


class Writer:
    """Background writer: groups of works in order, the works of a group at the same time.

    An error is raised at the next `wait`.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "writer")
        self._files = ThreadPoolExecutor(_AT_ONCE, "files")
        self._waiting: list[Future[object]] = []
        self._failed = False

    def soon(self, *works: Callable[[], object]) -> None:
        """Queue works that may be done at the same time, after all that were queued before."""
        self._waiting.append(self._pool.submit(self._do, works))

    def wait(self) -> None:
        """Wait until everything is done; raise the first error."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.result()

    def close(self) -> None:
        """Wait for everything, and end the threads."""
        try:
            self.wait()
        finally:
            self._pool.shutdown(cancel_futures=True)
            self._files.shutdown()

    def _do(self, works: Sequence[Callable[[], object]]) -> None:
        """Do the works, unless an earlier one failed: a later file may stand for earlier ones."""
        if self._failed:
            return
        under_way = [self._files.submit(work) for work in works]
        wait(under_way)
        self._failed = any(work.exception() for work in under_way)
        for work in under_way:
            work.result()
