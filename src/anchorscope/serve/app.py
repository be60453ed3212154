"""The routes of `detect serve` behind their guard: chat completions, models, health, metrics."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException

from anchorscope.detect.deployed.located import Scored
from anchorscope.serve.protocol import ChatRequest, Reply, models_list, question_of
from anchorscope.serve.queue import Event, Job, Work
from anchorscope.serve.served import Done, Piece, Served
from anchorscope.web.guard import Access, ApiError, Guard

_GET = ["GET", "HEAD"]
PATHS = ("/v1/chat/completions", "/v1/models", "/healthz", "/readyz", "/metrics")
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of requests: how many wait, are batched, and how large they are."""

    queue: int = 64  # requests that wait
    batch: int = 32  # questions in one call of the model
    characters: int = 2000  # of a question
    bytes: int = 1 << 16  # of a request


def serve_app(
    served: Served, *, limits: Limits, key: str | None = None, hosts: Collection[str] = ()
) -> Guard:
    """The routes behind their guard; the worker lives as long as the server does."""
    work = Work(served, longest=limits.queue, batch=limits.batch)
    metrics = Metrics(work.length)
    work.batches = metrics.called

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        work.start()
        yield
        await asyncio.to_thread(work.stop)

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    keyless = ("/healthz", "/readyz")  # they reveal nothing, and monitors hold no key
    access = Access(hosts=hosts, key=key, keyless=keyless, max_bytes=limits.bytes)
    guard = Guard(app, access, metrics.finished)
    _add_errors(app)
    _add_monitoring(app, guard, work, metrics)
    _add_models(app, served)
    chat = _Chat(served, work, metrics, limits)
    app.post("/v1/chat/completions", response_model=None)(chat.complete)
    return guard


@dataclass(frozen=True)
class _Chat:
    served: Served
    work: Work
    metrics: Metrics
    limits: Limits

    async def complete(self, body: ChatRequest, request: Request) -> Response:
        """The answer whole, or as server-sent events."""
        question = question_of(body, model=self.served.model.name)
        if len(question) > self.limits.characters:
            message = (
                f"The question has {len(question)} characters. Accepted: "
                f"{self.limits.characters} at most."
            )
            raise ApiError(400, message, param="messages", code="context_length_exceeded")
        reply = Reply(
            model=self.served.model.name,
            detector=self.served.facts,
            ignored=tuple(body.ignored()),
        )
        events: asyncio.Queue[Event] = asyncio.Queue()
        job = self._put(question, bool(body.stream), events)
        first = await _first_event(request, job, events)
        if isinstance(first, ApiError):
            raise first
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            lines = self._lines(reply, first, events, usage)
            return StreamingResponse(lines, media_type="text/event-stream")
        assert isinstance(first, Done)
        self.metrics.answered(first.scored)
        return JSONResponse(reply.whole(first.scored, first.usage, first.finish))

    def _put(self, question: str, stream: bool, events: asyncio.Queue[Event]) -> Job:
        loop = asyncio.get_running_loop()

        def send(event: Event) -> None:
            if not loop.is_closed():  # the server may have ended meanwhile
                loop.call_soon_threadsafe(events.put_nowait, event)

        job = Job(question, stream, send)
        self.work.put(job)
        return job

    async def _lines(
        self, reply: Reply, first: Event, events: asyncio.Queue[Event], usage: bool
    ) -> AsyncIterator[str]:
        """The server-sent events of an answer."""
        yield _event(reply.chunk({"role": "assistant", "content": ""}))
        event = first
        while isinstance(event, Piece):
            running = {"running": event.running}
            yield _event(reply.chunk({"content": event.text}, anchorscope=running))
            event = await events.get()
        if isinstance(event, ApiError):
            yield _event(event.body())
            return
        for line in self._last(reply, event, usage):
            yield line

    def _last(self, reply: Reply, done: Done, usage: bool) -> list[str]:
        """The end of a stream: the score with the last piece, the counts if they were wanted."""
        self.metrics.answered(done.scored)
        score = reply.score(done.scored)
        delta = {"content": done.rest} if done.rest else {}
        lines = [_event(reply.chunk(delta, finish=done.finish, anchorscope=score))]
        lines += [_event(reply.usage_chunk(done.usage))] if usage else []
        return [*lines, "data: [DONE]\n\n"]


async def _first_event(request: Request, job: Job, events: asyncio.Queue[Event]) -> Event:
    """The first event of a job; a job whose client leaves before is not begun."""
    event, left = asyncio.ensure_future(events.get()), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({event, left}, return_when=asyncio.FIRST_COMPLETED)
        if event.done():
            return event.result()
        job.gone = True
        raise ApiError(499, "The client left.")
    finally:
        event.cancel()
        left.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, allow_nan=False)}\n\n"


def _add_models(app: FastAPI, served: Served) -> None:
    listed = models_list(served.model.name, int(time.time()))

    @app.api_route("/v1/models", methods=_GET)
    async def models() -> dict[str, Any]:
        return listed

    @app.api_route("/v1/models/{name:path}", methods=_GET)
    async def model(name: str) -> dict[str, Any]:
        (one,) = listed["data"]
        if name != one["id"]:
            raise ApiError(404, f"Unknown model '{name}'. Accepted: {one['id']}.", param="model")
        return one


def _add_monitoring(app: FastAPI, guard: Guard, work: Work, metrics: Metrics) -> None:
    @app.api_route("/healthz", methods=_GET)
    async def healthz() -> JSONResponse:
        return _status("ok" if work.alive() else "dead")

    @app.api_route("/readyz", methods=_GET)
    async def readyz() -> JSONResponse:
        return _status("draining" if guard.draining else "ok" if work.alive() else "dead")

    @app.api_route("/metrics", methods=_GET)
    async def read_metrics() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")


def _status(word: str) -> JSONResponse:
    return JSONResponse({"status": word}, 200 if word == "ok" else 503)


def _add_errors(app: FastAPI) -> None:
    """Every error in one shape: ours, the router's, and those of a body that is no request."""

    @app.exception_handler(ApiError)
    async def refused(_: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.body(), error.status, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:]) or None
        words = f"{place}: {first['msg']}." if place else f"The body is no request: {first['msg']}."
        return JSONResponse(ApiError(400, words, param=place).body(), 400)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        words = f"{request.method} {request.url.path}: {error.detail}."
        return JSONResponse(ApiError(error.status_code, words).body(), error.status_code)


class Metrics:
    """Counts for Prometheus: requests, flagged answers, how many wait, and seconds.

    The registry is its own: two servers in one process do not mix.
    """

    def __init__(self, waiting: Callable[[], int]) -> None:
        own = self._registry = CollectorRegistry()
        common: Any = {"namespace": "anchorscope", "registry": own}
        self._requests = Counter("requests", "Requests.", ("path", "status"), **common)
        self._answers = Counter("answers", "Answers that were scored.", **common)
        self._flagged = Counter("flagged", "Answers flagged as wrong.", **common)
        self._seconds = Histogram(
            "request_seconds", "Seconds of a chat request, to its last byte.",
            buckets=_SECONDS, **common,
        )  # fmt: skip
        self._sizes = Histogram("batch_size", "Questions in one call.", buckets=_SIZES, **common)
        Gauge("queue_length", "Requests that wait.", **common).set_function(waiting)

    def answered(self, scored: Scored) -> None:
        """Count an answer."""
        self._answers.inc()
        self._flagged.inc(int(scored.flagged))

    def called(self, size: int) -> None:
        """Count a call of the model with this many questions."""
        self._sizes.observe(size)

    def finished(self, path: str, status: int, seconds: float) -> None:
        """Count a request; a path that does not exist is `other`, or scanners would fill memory."""
        self._requests.labels(path if path in PATHS else "other", str(status)).inc()
        if path == PATHS[0] and status == 200:
            self._seconds.observe(seconds)

    def text(self) -> bytes:
        """What Prometheus reads."""
        return generate_latest(self._registry)
