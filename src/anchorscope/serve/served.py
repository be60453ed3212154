"""Answer prompts and score answers in batches, with the server's model and detector.

A bounded queue holds the requests that wait, and one thread runs them on the model. Streaming uses
the same call, which also reports each token of the streamed answers: they are the same as whole
ones.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from anchorscope.answers.generate import Answerer
from anchorscope.detect.detector import Detector, RunningScore
from anchorscope.detect.prompts import Bound, Exchange, check_made_for, common_prefix, tasks_of
from anchorscope.detect.read_answers import Task, fitting, on_host
from anchorscope.detect.scored import Scored
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.decode import OnToken, Prefix, Sampling, Step
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.models.prompts import window_of
from anchorscope.records import Answer
from anchorscope.serve.metrics import Metrics
from anchorscope.serve.protocol import Ask, Written
from anchorscope.show.token_texts import piece
from anchorscope.web.server import ApiError

log = logging.getLogger(__name__)
_HALF = "\ufffd"  # what half a character decodes to


@dataclass(frozen=True)
class Piece:
    """The text that a new token adds to an answer, and the running score."""

    number: int  # of the answer in its request
    text: str
    running: dict[str, Any]


Send = Callable[[Piece], Any]
Event = Piece | list[Written] | ApiError


@dataclass
class Served:
    """A detector and its model. One thread at a time may call it."""

    detector: Detector
    model: Model
    dataset: str | None = None  # of the detector's, whose prompt is used, where they differ
    max_tokens: int = 256  # of an answer, where the detector asks no questions itself
    _bound: Bound | None = field(init=False, repr=False)
    _answerer: Answerer = field(init=False, repr=False)
    _running: RunningScore = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._running = RunningScore(self.detector)
        if self.detector.examples:
            self._bound = self.detector.bind(self.model, dataset=self.dataset)
            self._answerer = self._bound.answerer
        else:
            check_made_for(self.detector.model, self.model)
            self._bound = None
            self._answerer = Answerer(self.model, max_tokens=self.max_tokens, lines=False)

    @property
    def facts(self) -> dict[str, Any]:
        """The detector's id, name and threshold, which every answer carries."""
        detector = self.detector
        return {
            "detector": detector.id, "method": detector.name, "threshold": detector.threshold,
        }  # fmt: skip

    def warm(self) -> None:
        """Answer and score one prompt, so that a model and a detector that do not fit fail now."""
        texts = [example.question for example in self.detector.examples[:1]]
        first = Exchange(answer="", question=texts[0]) if texts else Exchange(answer="", prompt="A")
        self.answer([Ask(exchange=first)])

    def check(self, ask: Ask) -> None:
        """Raise an ApiError if a prompt is invalid, or leaves no room for its answer."""
        try:
            prompt = len(tasks_of(self.model, self._bound, ask.exchange, 0)[0].prompt_ids)
        except UserError as error:
            raise ApiError(400, str(error), param="messages") from error
        window, limit = window_of(self.model), self._answerer.max_tokens
        if not ask.given and window is not None and prompt + limit > window:
            message = (
                f"The prompt has {prompt} tokens and the answer may have {limit}; {self.model.name}"
                f" reads {window}. Ask a shorter question."
            )
            raise ApiError(400, message, param="messages", code="context_length_exceeded")

    def answer(
        self, asks: Sequence[Ask], sends: Sequence[Send | None] | None = None
    ) -> list[Written]:
        """The answers to the prompts with their scores, in batches; given answers are scored.

        `sends` are called with a piece for each token of their prompt's answers.
        """
        rows: list[_Row] = []
        for ask, send in zip(asks, sends or [None] * len(asks), strict=True):
            for n in range(ask.n):
                task = self._task(len(rows), ask)
                rows.append(_Row(self.model.tokenizer, ask, task, ask.first + n, send))
        written = [row for row in rows if not row.ask.given]
        self._write([row for row in written if not row.ask.temperature], rows)
        self._draw([row for row in written if row.ask.temperature])
        # Given, sampled and shortened answers have no score yet.
        unscored = [row for row in rows if row.scored is None or row.end()[0] != row.answer.text]
        if unscored:
            exchanges = [replace(row.ask.exchange, answer=row.end()[0]) for row in unscored]
            scores = self.detector.score_answers(self.model, exchanges, dataset=self.dataset)
            for row, scored in zip(unscored, scores, strict=True):
                row.scored = scored
        return [row.written() for row in rows]

    def _task(self, number: int, ask: Ask) -> Task:
        """Tokenise a prompt whose answer is to be generated.

        In an answer to a question only one entity is read, as when the detector was evaluated.
        """
        exchange = replace(ask.exchange, answer=None)
        question = bool(exchange.question) or len(exchange.messages) == 1
        every = self._bound is None or not question
        (task,) = tasks_of(self.model, self._bound, exchange, number, every=every)
        return task

    def _write(self, greedy: Sequence[_Row], rows: Sequence[_Row]) -> None:
        """Generate greedy answers and score them by the states of the same pass."""
        shared = self._bound.shared if self._bound else ()
        own = [row.task for row in greedy if row.task.prompt_ids[: len(shared)] == shared]
        others = [row.task for row in greedy if row.task.prompt_ids[: len(shared)] != shared]
        for tasks in (own, others):
            prefix_of = self._bound.prefix if self._bound and tasks is own else common_prefix(tasks)
            for batch, scored in self.detector.read(
                self._answerer, prefix_of, tasks, on_token=self._follow(rows)
            ):
                for number, located, one in zip(batch.numbers, batch.answers, scored, strict=True):
                    rows[number].answer, rows[number].scored = located.answer, one

    def _draw(self, rows: Sequence[_Row]) -> None:
        """Sample answers, each at its own temperature; the same seed gives the same answer."""
        limit = self._answerer.max_tokens
        for temperature in sorted({row.ask.temperature for row in rows}):
            drawn = [row for row in rows if row.ask.temperature == temperature]
            with Lease(self.model) as lease:

                def work(
                    batch: list[_Row], lease: Lease = lease, temperature: float = temperature
                ) -> list[list[Answer]]:
                    prompts = [row.task.prompt_ids for row in batch]
                    prefix = self._bound.prefix(lease) if self._bound else Prefix((), None)
                    prefix = fitting(prefix, prompts)
                    numbers = torch.from_numpy(np.stack([row.uniforms(limit) for row in batch]))
                    return self._answerer.sample(
                        lease, prefix, [""] * len(batch), prompts, Sampling(temperature, numbers),
                        on_token=self._follow(batch),
                    )  # fmt: skip

                for batch, answers in in_batches(
                    drawn,
                    work,
                    length=lambda row: len(row.task.prompt_ids) + limit,
                    then=lambda row: row.task.number,
                    budget=Budget.of(self.model),
                ):
                    for row, (answer,) in zip(batch, answers, strict=True):
                        row.answer = answer

    def _follow(self, rows: Sequence[_Row]) -> OnToken | None:
        """A token callback that streams the answers of these rows; None if none is streamed."""
        if not any(row.send for row in rows):
            return None

        def on_token(step: Step) -> None:
            heard = [at for at, number in enumerate(step.rows) if rows[number].send]
            if not heard:
                return
            layers = torch.tensor([layer - 1 for layer in self._running.layers])
            states = step.states[torch.tensor(heard)[:, None], layers]
            for at, state in zip(heard, on_host(states), strict=True):
                rows[step.rows[at]].hear(step.number, step.tokens[at], self._running.fields(state))

        return on_token


@dataclass(eq=False)
class _Row:
    """One answer in progress: its request, its tokens, and the text sent so far."""

    tokenizer: Any
    ask: Ask
    task: Task
    number: int  # of the answer in its request
    send: Send | None
    answer: Answer = field(init=False)
    scored: Scored | None = None
    _ids: list[int] = field(default_factory=list)
    _sent: str = ""
    _drawn: np.ndarray | None = None

    def uniforms(self, steps: int) -> np.ndarray:
        """The random numbers in [0, 1) for sampling the answer, [1, step]."""
        seed = None if self.ask.seed is None else [abs(self.ask.seed), self.number]
        if self._drawn is None:
            self._drawn = np.random.default_rng(seed).random((1, steps))
        return self._drawn

    def hear(self, step: int, token: int, running: dict[str, Any]) -> None:
        """Send the text that a token adds; trailing spaces and half characters wait for more."""
        del self._ids[step:]  # a batch that ran out of memory begins again
        self._ids.append(token)
        if self.send is None or len(self._ids) > (self.ask.most or len(self._ids)):
            return
        text, stopped = _cut(self._decode(self._ids).lstrip(), self.ask.stops)
        if not stopped:  # the next tokens may complete a stop
            text = text[: len(text) - max(map(len, self.ask.stops), default=1) + 1]
        self.send(Piece(self.number, self._beyond(text.rstrip(_HALF).rstrip()), running))

    def end(self) -> tuple[str, tuple[int, ...], bool]:
        """Text and tokens up to the first stop text or the limit, and whether the answer ended."""
        if self.ask.given:
            return self.ask.exchange.answer or "", (), True
        ids = self.answer.token_ids[: self.ask.most]
        text, stopped = _cut(self._decode(ids), self.ask.stops)
        while stopped and _cut(self._decode(ids[:-1]), self.ask.stops)[1]:
            ids = ids[:-1]
        whole = self.answer.finished and len(ids) == len(self.answer.token_ids)
        return text.strip(), ids, stopped or whole

    def written(self) -> Written:
        """The answer with its score, and the text that a stream has not sent yet."""
        text, ids, ended = self.end()
        assert self.scored is not None
        return Written(
            scored=self.scored,
            prompt_tokens=len(self.task.prompt_ids),
            tokens=tuple(piece(self.tokenizer.backend_tokenizer, token) for token in ids),
            log_probs=self.answer.log_probs[: len(ids)] if ids else (),
            finish="stop" if ended else "length",
            rest=self._beyond(text),
        )

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def _beyond(self, text: str) -> str:
        if not text.startswith(self._sent):
            return ""
        new, self._sent = text[len(self._sent) :], text
        return new


def _cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text up to the first stop in it, and whether there is one."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


# --- The queue, and the thread that runs the model ---


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
