"""A bounded queue of requests and the one thread that takes them to the model, several at once."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from anchorscope.detect.deployed.exchanges import Exchange
from anchorscope.detect.deployed.located import Scored
from anchorscope.errors import UserError
from anchorscope.serve.metrics import Metrics
from anchorscope.serve.protocol import Ask, Written
from anchorscope.serve.served import Piece, Served
from anchorscope.web.guard import ApiError

log = logging.getLogger(__name__)
Event = Piece | list[Written] | list[Scored] | ApiError


@dataclass(eq=False, kw_only=True)
class Job:
    """Prompts that wait for their answers, or answers for their scores.

    `send` is called from the worker's thread: with pieces, where it streams, then with the rest.
    """

    asks: Sequence[Ask] = ()
    given: Sequence[Exchange] = ()
    stream: bool = False
    send: Callable[[Event], Any]
    gone: bool = False  # its client left: not begun any more
    begun: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        """How many answers it takes of a batch."""
        return len(self.given) + sum(ask.n for ask in self.asks)


class Worker:
    """What waits in the queue goes to the model in one call: prompts together, answers together."""

    def __init__(self, served: Served, metrics: Metrics, *, longest: int, batch: int) -> None:
        self._served, self._metrics, self._batch = served, metrics, batch
        self._waiting: queue.Queue[Job | None] = queue.Queue(longest)  # None: look at _stopping
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="anchorscope-worker", daemon=True)
        metrics.waiting.set_function(self._waiting.qsize)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the call it is in: torch aborts a process that ends inside one."""
        self._stopping = True
        with suppress(queue.Full):  # then the thread is not waiting
            self._waiting.put_nowait(None)
        self._thread.join()

    def alive(self) -> bool:
        """Whether the thread is there to take what comes."""
        return self._thread.is_alive()

    def put(self, job: Job) -> None:
        """Take a job, or refuse it at once where as many wait as may."""
        try:
            self._waiting.put_nowait(job)
        except queue.Full:
            message = f"{self._waiting.maxsize} requests are waiting already. Try again later."
            raise ApiError(503, message) from None

    def _run(self) -> None:
        while not self._stopping:
            jobs = self._take()
            for part in ([j for j in jobs if j.asks], [j for j in jobs if j.given]):
                if part and not self._stopping:
                    self._work(part)

    def _take(self) -> list[Job]:
        """The next jobs, one at least, without those whose client left.

        Prompts that cannot be asked are refused here and not where they arrive: the tokenizer
        belongs to one thread, as the model does.
        """
        jobs = [self._waiting.get()]
        while sum(job.size for job in jobs if job) < self._batch and not self._waiting.empty():
            jobs.append(self._waiting.get())
        fitting = []
        for job in jobs:
            if job is None or job.gone:
                continue
            self._metrics.wait.observe(time.monotonic() - job.begun)
            try:
                for ask in job.asks:
                    self._served.check(ask)
                fitting.append(job)
            except Exception as error:
                job.send(_api_error(error))
        return fitting

    def _work(self, jobs: list[Job]) -> None:
        """One call for all; where it fails, one for each, so that a bad prompt fails alone."""
        self._metrics.batch.observe(sum(job.size for job in jobs))
        try:
            results: Sequence[Event] = self._called(jobs)
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    self._work([job])
                return
            results = [_api_error(error)]
        for job, result in zip(jobs, results, strict=True):
            job.send(result)

    def _called(self, jobs: list[Job]) -> list[Any]:
        """What the model gives for the jobs, by job."""
        if jobs[0].given:
            flat = self._served.score([one for job in jobs for one in job.given])
            return _by_job(flat, [len(job.given) for job in jobs])
        asks = [ask for job in jobs for ask in job.asks]
        answers = self._served.answer(asks, [send for job in jobs for send in _sends(job)])
        by_job = _by_job(answers, [len(job.asks) for job in jobs])
        return [[one for several in part for one in several] for part in by_job]


def _sends(job: Job) -> list[Callable[[Piece], Any] | None]:
    """Who hears the pieces of each of the job's prompts; they count answers over all of them."""
    if not job.stream:
        return [None] * len(job.asks)
    starts = accumulate([ask.n for ask in job.asks], initial=0)
    return [
        lambda piece, start=start: job.send(replace(piece, number=start + piece.number))
        for start, _ in zip(starts, job.asks, strict=False)
    ]


def _by_job(items: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    out, start = [], 0
    for count in counts:
        out.append(list(items[start : start + count]))
        start += count
    return out


def _api_error(error: Exception) -> ApiError:
    """The error that a client gets; a fault of ours is logged with its traceback."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        return ApiError(500, str(error))
    log.error("A request failed", exc_info=error)
    return ApiError(500, "The server failed on this request. Its log says why.")
