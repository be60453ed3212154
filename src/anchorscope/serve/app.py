"""The routes of `detect serve` behind their guard: answers, scores, models, health, metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from anchorscope.detect.scored import Scored
from anchorscope.serve.metrics import Metrics
from anchorscope.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    Reply,
    ScoreRequest,
    headers_of,
    score_of,
)
from anchorscope.serve.served import Piece, Served
from anchorscope.serve.worker import Event, Job, Worker
from anchorscope.web.guard import Access, ApiError, Guard

requests = logging.getLogger("anchorscope.requests")  # a line of JSON for each
_GET = ["GET", "HEAD"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of requests: how many wait, are batched, and how large they are."""

    queue: int = 64  # requests that wait
    batch: int = 32  # answers in one call of the model, and in one request
    characters: int = 2000  # of a prompt, and of an answer to score
    bytes: int = 1 << 16  # of a request


def serve_app(
    served: Served, *, limits: Limits, key: str | None = None, hosts: Collection[str] = ()
) -> Guard:
    """The routes behind their guard; the worker lives as long as the server does."""
    metrics = Metrics(served.facts)
    worker = Worker(served, metrics, longest=limits.queue, batch=limits.batch)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        await asyncio.to_thread(worker.stop)

    def finished(facts: dict[str, Any]) -> None:
        metrics.finished(facts)
        requests.info(json.dumps(facts))

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    keyless = ("/healthz", "/readyz")  # they reveal nothing, and monitors hold no key
    access = Access(hosts=hosts, key=key, keyless=keyless, max_bytes=limits.bytes)
    guard = Guard(app, access, finished)
    _add_errors(app)
    _add_monitoring(app, guard, worker, metrics)
    _add_models(app, served)
    answers = _Answers(served, worker, metrics, limits)
    app.post("/v1/chat/completions", response_model=None)(answers.chat)
    app.post("/v1/completions", response_model=None)(answers.completions)
    app.post("/v1/score", response_model=None)(answers.score)
    return guard


@dataclass(frozen=True)
class _Answers:
    """The three routes that ask the model."""

    served: Served
    worker: Worker
    metrics: Metrics
    limits: Limits

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        return await self._write(body, request, bool(body.logprobs))

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        return await self._write(body, request, body.logprobs is not None)

    async def score(self, body: ScoreRequest, request: Request) -> Response:
        """The scores of given answers, in their order."""
        self._check_model(body.model)
        given = body.given()
        for one in given:
            turns = sum(len(message["content"]) for message in one.messages)
            self._check_length(max(len(one.prompt) + turns, len(one.answer)))
        self._check_count(len(given))
        scores = await self._first(Job(given=given), request)
        assert isinstance(scores, list)
        data = [{"index": n, "object": "score", **score_of(s)} for n, s in enumerate(scores)]
        content = {"object": "list", "model": body.model, "data": data} | self.served.facts
        return JSONResponse(content, headers=self._count(scores, request))

    async def _write(
        self, body: ChatRequest | CompletionRequest, request: Request, logprobs: bool
    ) -> Response:
        """The answers whole, or as server-sent events."""
        self._check_model(body.model)
        asks = body.asks()
        for ask in asks:
            self._check_length(ask.characters)
        self._check_count(sum(ask.n for ask in asks))
        reply = Reply(
            kind="chat.completion" if isinstance(body, ChatRequest) else "text_completion",
            model=body.model,
            detector=self.served.facts,
            stream=bool(body.stream),
            n=asks[0].n,
            logprobs=logprobs,
            ignored=tuple(body.ignored()),
        )
        job = Job(asks=asks, stream=bool(body.stream))
        first = await self._first(job, request)
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            lines = self._lines(reply, first, job, request, usage)
            return StreamingResponse(lines, media_type="text/event-stream")
        assert isinstance(first, list)
        headers = self._count([one.scored for one in first], request)
        return JSONResponse(reply.whole(first), headers=headers)

    async def _first(self, job: Job, request: Request) -> Event:
        """The first event of a job; one whose client leaves before is not begun."""
        self.worker.put(job)
        event, left = asyncio.ensure_future(job.events.get()), asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({event, left}, return_when=asyncio.FIRST_COMPLETED)
            if not event.done():
                job.gone = True
                raise ApiError(499, "The client left.")
            if isinstance(result := event.result(), ApiError):
                raise result
            return result
        finally:
            event.cancel()
            left.cancel()

    async def _lines(
        self, reply: Reply, first: Event, job: Job, request: Request, usage: bool
    ) -> AsyncIterator[str]:
        """The server-sent events of an answer: its pieces, then the scores."""
        event, opened = first, set()
        while isinstance(event, Piece):
            if event.number not in opened:
                opened.add(event.number)
                yield _event(reply.chunk(event.number, "", first=True))
            yield _event(reply.chunk(event.number, event.text, running=event.running))
            event = await job.events.get()
        if isinstance(event, ApiError):
            yield _event(event.body())
            return
        self._count([one.scored for one in event], request)
        for number, one in enumerate(event):
            if number not in opened:  # an answer without a token
                yield _event(reply.chunk(number, "", first=True))
            yield _event(reply.last(number, one))
        if usage:
            yield _event(reply.usage_chunk(event))
        yield "data: [DONE]\n\n"

    def _count(self, scores: Sequence[Scored], request: Request) -> dict[str, str]:
        """Count these answers, note them for the log; the headers that tell their outcomes."""
        for one in scores:
            self.metrics.scored(one)
        headers = headers_of(scores)
        outcomes, probabilities = headers.values()
        request.scope["facts"] |= {"outcome": outcomes, "probability": probabilities}
        return headers | {"x-anchorscope-detector": self.served.detector.id}

    def _check_model(self, name: str) -> None:
        if name != self.served.model.name:
            message = f"Unknown model '{name}'. Accepted: {self.served.model.name}."
            raise ApiError(400, message, param="model", code="model_not_found")

    def _check_length(self, characters: int) -> None:
        most = self.limits.characters
        if characters > most:
            message = f"The text has {characters} characters. Accepted: {most} at most."
            raise ApiError(400, message, param="messages", code="context_length_exceeded")

    def _check_count(self, answers: int) -> None:
        if answers > self.limits.batch:
            message = f"{answers} answers at once. Accepted: {self.limits.batch} a request."
            raise ApiError(400, message, param="n")


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, allow_nan=False)}\n\n"


def _add_models(app: FastAPI, served: Served) -> None:
    one = {"id": served.model.name, "object": "model", "created": int(time.time())}
    one |= {"owned_by": "anchorscope"}

    @app.api_route("/v1/models", methods=_GET)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [one]}

    @app.api_route("/v1/models/{name:path}", methods=_GET)
    async def model(name: str) -> dict[str, Any]:
        if name != one["id"]:
            raise ApiError(404, f"Unknown model '{name}'. Accepted: {one['id']}.", param="model")
        return one


def _add_monitoring(app: FastAPI, guard: Guard, worker: Worker, metrics: Metrics) -> None:
    @app.api_route("/healthz", methods=_GET)
    async def healthz() -> JSONResponse:
        return _status("ok" if worker.alive() else "dead")

    @app.api_route("/readyz", methods=_GET)
    async def readyz() -> JSONResponse:
        return _status("draining" if guard.draining else "ok" if worker.alive() else "dead")

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
