"""The HTTP routes of `detect serve`: answers, scores, models, health, metrics."""

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
from fastapi.responses import JSONResponse, Response, StreamingResponse

from anchorscope.detect.scored import Scored
from anchorscope.serve.metrics import Metrics
from anchorscope.serve.protocol import (
    Ask,
    ChatRequest,
    CompletionRequest,
    Reply,
    ScoreRequest,
    score_of,
)
from anchorscope.serve.served import Event, Job, Piece, Served, Worker
from anchorscope.web.server import Access, ApiError, Guard, new_app

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
    """The guarded ASGI app of `detect serve`; its worker runs while the server does."""
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

    app = new_app(lifespan=lifespan)
    access = Access(
        hosts=() if key else hosts,
        secret=f"Bearer {key}" if key else None,
        open_paths=("/healthz", "/readyz"),  # they reveal nothing, and monitors hold no key
        max_bytes=limits.bytes,
    )
    guard = Guard(app, access, finished)
    answers = _Answers(served, worker, metrics, limits)
    app.post("/v1/chat/completions", response_model=None)(answers.chat)
    app.post("/v1/completions", response_model=None)(answers.completions)
    app.post("/v1/score", response_model=None)(answers.score)

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

    @app.api_route("/healthz", methods=_GET)
    async def healthz() -> JSONResponse:
        return JSONResponse(*(({"status": "ok"}, 200) if worker.alive() else _DEAD))

    @app.api_route("/readyz", methods=_GET)
    async def readyz() -> JSONResponse:
        return JSONResponse({"status": "draining"}, 503) if guard.draining else await healthz()

    @app.api_route("/metrics", methods=_GET)
    async def read_metrics() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    return guard


_DEAD = {"status": "dead"}, 503


@dataclass(frozen=True)
class _Answers:
    """The routes that call the model: chat completions, completions, and scores."""

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
        first = await self._first(self._job(body.model, body.asks()), request)
        assert isinstance(first, list)
        scores = [one.scored for one in first]
        data = [{"index": n, "object": "score", **score_of(s)} for n, s in enumerate(scores)]
        content = {"object": "list", "model": body.model, "data": data} | self.served.facts
        return JSONResponse(content, headers=self._count(scores, request))

    async def _write(
        self, body: ChatRequest | CompletionRequest, request: Request, logprobs: bool
    ) -> Response:
        """Reply with whole answers, or with server-sent events."""
        job = self._job(body.model, body.asks(), stream=bool(body.stream))
        reply = Reply(
            kind="chat.completion" if isinstance(body, ChatRequest) else "text_completion",
            model=body.model,
            detector=self.served.facts,
            stream=job.stream,
            n=job.asks[0].n,
            logprobs=logprobs,
            ignored=tuple(body.ignored()),
        )
        first = await self._first(job, request)
        if job.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            lines = self._lines(reply, first, job, request, usage)
            return StreamingResponse(lines, media_type="text/event-stream")
        assert isinstance(first, list)
        choices = [reply.choice(n, one.scored.answer, one) for n, one in enumerate(first)]
        scores = [one.scored for one in first]
        content = reply.body(choices, usage=reply.usage(first), anchorscope=reply.score(scores[0]))
        return JSONResponse(content, headers=self._count(scores, request))

    def _job(self, model: str, asks: Sequence[Ask], *, stream: bool = False) -> Job:
        """Make a job of a request; an ApiError if it is beyond the limits."""
        if model != self.served.model.name:
            message = f"Unknown model '{model}'. Accepted: {self.served.model.name}."
            raise ApiError(400, message, param="model", code="model_not_found")
        most = self.limits.characters
        if (characters := max(ask.characters for ask in asks)) > most:
            message = f"The text has {characters} characters. Accepted: {most} at most."
            raise ApiError(400, message, param="messages", code="context_length_exceeded")
        job = Job(asks=asks, stream=stream)
        if job.size > self.limits.batch:
            message = f"{job.size} answers at once. Accepted: {self.limits.batch} a request."
            raise ApiError(400, message, param="n")
        return job

    async def _first(self, job: Job, request: Request) -> Event:
        """Queue a job and wait for its first event; cancel it if the client leaves before."""
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
                yield _event(reply.body([reply.choice(event.number, "", first=True)]))
            more = {"anchorscope": {"running": event.running}} if event.running else {}
            yield _event(reply.body([reply.choice(event.number, event.text)], **more))
            event = await job.events.get()
        if isinstance(event, ApiError):
            yield _event(event.body)
            return
        self._count([one.scored for one in event], request)
        for number, one in enumerate(event):
            if number not in opened:  # an answer without a token
                yield _event(reply.body([reply.choice(number, "", first=True)]))
            score = reply.score(one.scored)
            yield _event(reply.body([reply.choice(number, one.rest, one)], anchorscope=score))
        if usage:
            yield _event(reply.body([], usage=reply.usage(event)))
        yield "data: [DONE]\n\n"

    def _count(self, scores: Sequence[Scored], request: Request) -> dict[str, str]:
        """Count answers and note them for the log; return headers with their outcomes."""
        for one in scores:
            self.metrics.scored(one)
        outcomes = ", ".join(one.outcome for one in scores)
        probabilities = ", ".join(f"{one.probability:.4f}" for one in scores)  # or nan
        request.scope["facts"] |= {"outcome": outcomes, "probability": probabilities}
        return {
            "x-anchorscope-outcome": outcomes,
            "x-anchorscope-probability": probabilities,
            "x-anchorscope-detector": self.served.detector.id,
        }


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, allow_nan=False)}\n\n"
