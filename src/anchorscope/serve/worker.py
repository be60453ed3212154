"""A bounded queue of requests, and the one thread that runs them on the model in batches."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from anchorscope.errors import UserError
from anchorscope.serve.metrics import Metrics
from anchorscope.serve.protocol import Ask, Written
from anchorscope.serve.served import Piece, Served
from anchorscope.web.server import ApiError

log = logging.getLogger(__name__)
Event = Piece | list[Written] | ApiError


@dataclass(eq=False, kw_only=True)
class Job:
    """The prompts of one queued request; created in the event loop."""

    asks: Sequence[Ask]
    stream: bool = False
    gone: bool = False  # its client left: it is not begun
    begun: float = field(default_factory=time.monotonic)
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    @property
    def size(self) -> int:
        """The number of answers that it adds to a batch."""
        return sum(ask.n for ask in self.asks)

    def send(self, event: Event) -> None:
        """Pass an event from the model's thread to the event loop."""
        if not self.loop.is_closed():  # the server may have ended meanwhile
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


class Worker:
    """Run queued jobs on the model, several in one call."""

    def __init__(self, served: Served, metrics: Metrics, *, longest: int, batch: int) -> None:
        self._served, self._metrics, self._batch = served, metrics, batch
        self._waiting: queue.Queue[Job | None] = queue.Queue(longest)  # None: look at _stopping
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="anchorscope-worker", daemon=True)
        self.start, self.alive = self._thread.start, self._thread.is_alive
        metrics.waiting.set_function(self._waiting.qsize)

    def stop(self) -> None:
        """End the thread after its current call: torch aborts a process that exits during one."""
        self._stopping = True
        with suppress(queue.Full):  # then the thread is not waiting
            self._waiting.put_nowait(None)
        self._thread.join()

    def put(self, job: Job) -> None:
        """Queue a job, or raise an ApiError at once if the queue is full."""
        try:
            self._waiting.put_nowait(job)
        except queue.Full:
            message = f"{self._waiting.maxsize} requests are waiting already. Try again later."
            raise ApiError(503, message) from None

    def _run(self) -> None:
        while not self._stopping:
            jobs: list[Job | None] = [self._waiting.get()]
            while sum(job.size for job in jobs if job) < self._batch and not self._waiting.empty():
                jobs.append(self._waiting.get())
            if fitting := [job for job in jobs if job and not job.gone and self._fits(job)]:
                self._work(fitting)

    def _fits(self, job: Job) -> bool:
        """Whether the model can answer a job's prompts; if not, the job gets the error.

        Checked here and not when a request arrives: the tokenizer belongs to one thread, as the
        model does.
        """
        self._metrics.wait.observe(time.monotonic() - job.begun)
        try:
            for ask in job.asks:
                self._served.check(ask)
        except Exception as error:
            job.send(_api_error(error))
            return False
        return True

    def _work(self, jobs: list[Job]) -> None:
        """Answer jobs in one call; if it fails, one by one, so that a bad prompt fails alone."""
        if self._stopping:
            return
        self._metrics.batch.observe(sum(job.size for job in jobs))
        asks = [ask for job in jobs for ask in job.asks]
        sends = [job.send if job.stream else None for job in jobs for _ in job.asks]
        try:
            answers = iter(self._served.answer(asks, sends))
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].send(_api_error(error))
            else:
                for job in jobs:
                    self._work([job])
            return
        for job in jobs:
            job.send([next(answers) for _ in range(job.size)])


def _api_error(error: Exception) -> ApiError:
    """The error that a client gets; an internal error is logged with its traceback."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        return ApiError(500, str(error))
    log.error("A request failed", exc_info=error)
    return ApiError(500, "The server failed on this request. Its log says why.")
