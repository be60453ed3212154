"""A queue of requests and the one thread that takes them to the model, several at once."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from anchorscope.detect.deployed.located import Scored
from anchorscope.errors import UserError
from anchorscope.serve.served import Done, Piece, Served
from anchorscope.web.guard import ApiError

log = logging.getLogger(__name__)
Event = Piece | Done | ApiError


@dataclass(eq=False)
class Job:
    """A question that waits for its answer. `send` is called from the worker's thread."""

    question: str
    stream: bool
    send: Callable[[Event], Any]
    gone: bool = False  # its client left: not begun any more


class Work:
    """A bounded queue and its worker: what waits is scored in one call.

    Streamed questions go one at a time, after the others: their tokens are recorded as they pass.
    """

    def __init__(self, served: Served, *, longest: int, batch: int) -> None:
        self._served, self._batch = served, batch
        self._waiting: queue.Queue[Job | None] = queue.Queue(longest)  # None: look at _stopping
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="anchorscope-worker", daemon=True)
        self.batches: Callable[[int], Any] = lambda size: (
            None
        )  # called with the size of every batch

    def start(self) -> None:
        """Start the worker."""
        self._thread.start()

    def stop(self) -> None:
        """End the worker after the call it is in: torch aborts a process that ends inside one."""
        self._stopping = True
        with suppress(queue.Full):  # then the worker is not waiting
            self._waiting.put_nowait(None)
        self._thread.join()

    def alive(self) -> bool:
        """Whether the worker is there to take what comes."""
        return self._thread.is_alive()

    def length(self) -> int:
        """How many wait; those at the model are not counted."""
        return self._waiting.qsize()

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
            together = [job for job in jobs if not job.stream]
            if together and not self._stopping:
                self._score(together)
            for job in jobs:
                if job.stream and not job.gone and not self._stopping:
                    self._stream(job)

    def _take(self) -> list[Job]:
        """The next jobs, one at least; those that cannot be asked are refused here.

        Here and not where they arrive: the tokenizer belongs to one thread, as the model does.
        """
        jobs = [self._waiting.get()]
        while len(jobs) < self._batch and not self._waiting.empty():
            jobs.append(self._waiting.get())
        return [job for job in jobs if job is not None and not job.gone and self._fits(job)]

    def _fits(self, job: Job) -> bool:
        found = self._or_error(lambda: self._served.check(job.question))
        if isinstance(found, ApiError):
            job.send(found)
        return not isinstance(found, ApiError)

    def _score(self, jobs: list[Job]) -> None:
        """One call for all; where it fails, one for each, so that a bad question fails alone."""
        self.batches(len(jobs))
        found = self._or_error(lambda: self._served.score([job.question for job in jobs]))
        if isinstance(found, ApiError) and len(jobs) > 1:
            for job in jobs:
                self._score([job])
            return
        for number, job in enumerate(jobs):
            scored = found if isinstance(found, ApiError) else self._done(found[number])
            job.send(scored)

    def _stream(self, job: Job) -> None:
        self.batches(1)
        job.send(self._or_error(lambda: self._served.stream(job.question, job.send)))

    def _done(self, scored: Scored) -> Done | ApiError:
        return self._or_error(lambda: self._served.done(scored))

    def _or_error(self, work: Callable[[], Any]) -> Any:
        """What `work` gives; an ApiError where it fails, so that the worker itself never ends."""
        try:
            return work()
        except ApiError as error:
            return error
        except UserError as error:
            return ApiError(500, str(error))
        except Exception:
            log.exception("A request failed")
            return ApiError(500, "The server failed on this request. Its log says why.")
