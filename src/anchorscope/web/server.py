"""HTTP for app and server: access control, error format, deadlines, shutdown at SIGTERM.

Without a key only this machine can connect, but a page of another site can make a browser on it
send requests to 127.0.0.1, and by a name that first points elsewhere and then here (DNS rebinding)
read the replies. So the Host must be exactly the address that is served, and the Origin, where
there is one, the page's own.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from anchorscope.errors import UserError

LOCAL = "127.0.0.1"
REQUEST_SECONDS = 30.0
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)
_KINDS = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "forbidden"),
    404: ("invalid_request_error", "not_found"),
    413: ("invalid_request_error", "request_too_large"),
    421: ("permission_error", "wrong_host"),
    500: ("server_error", "internal_error"),
    503: ("server_error", "overloaded"),
}


class ApiError(HTTPException):
    """An HTTP error with a message, in the JSON format of OpenAI's API."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(status, message, {"retry-after": "1"} if status == 503 else {})
        kind, usual = _KINDS.get(status, ("invalid_request_error", "invalid_request"))
        fields = {"message": message, "type": kind, "param": param, "code": code or usual}
        self.body: dict[str, Any] = {"error": fields}

    def response(self) -> JSONResponse:
        """The error as a reply."""
        return JSONResponse(self.body, self.status_code, self.headers)


def new_app(**options: Any) -> FastAPI:
    """A FastAPI app without documentation pages; its errors have the format of ApiError."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, **options)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        if not isinstance(error, ApiError):  # raised by the router
            words = f"{request.method} {request.url.path}: {error.detail}."
            error = ApiError(error.status_code, words)
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:]) or None
        return ApiError(400, f"{place or 'The body'}: {first['msg']}.", param=place).response()

    return app


@dataclass(frozen=True, kw_only=True)
class Access:
    """Which requests a guard lets through."""

    hosts: Collection[str] = ()  # accepted values of Host; () where only `secret` is checked
    secret: str | None = None  # the value of the header Authorization
    open_paths: Collection[str] = ()  # these need no secret
    browser: bool = False  # a POST must name its Origin, as every browser does
    max_bytes: int = 1 << 16  # of a request's body


class Guard:
    """ASGI middleware that admits requests by `access`, and reports each one when it ends.

    A report has the request's id, method, path, status (499: the client left) and seconds, and what
    its route noted in `scope["facts"]`. While `draining` is true, new work is refused.
    """

    def __init__(
        self,
        app: Asgi,
        access: Access,
        on_request: Callable[[dict[str, Any]], Any] = lambda facts: None,
    ) -> None:
        assert access.hosts or access.secret
        self._app, self._access, self._on_request = app, access, on_request
        self.draining = False

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close"})
        begun, facts = time.monotonic(), scope.setdefault("facts", {})
        facts |= {"id": _request_id(scope), "method": scope["method"], "path": scope["path"][:200]}
        size = 0

        def report() -> None:
            if "seconds" not in facts:
                facts.setdefault("status", 499)
                facts["seconds"] = round(time.monotonic() - begun, 4)
                self._on_request(facts)

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._access.max_bytes:
                raise self._too_large()  # the server discards what still comes
            return message

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts["status"] = message["status"]
                message["headers"] = self._with_headers(message.get("headers", []), facts["id"])
            elif not message.get("more_body", False):
                report()  # before the last bytes: every answered request is counted
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, counted, reply)
        except ApiError as error:
            await error.response()(scope, receive, reply)
        except asyncio.CancelledError:  # the server ends, and the time to drain is over
            if "status" not in facts:
                log.warning("%s was cut off: the server stopped before the answer.", scope["path"])
                error = ApiError(503, "The server stopped before the answer.")
                await error.response()(scope, receive, reply)
        except Exception:
            facts.setdefault("status", 500)  # which uvicorn sends
            raise
        finally:
            report()

    def _check(self, scope: Message) -> None:
        """Raise an ApiError for a request that can be refused by its headers."""
        access = self._access
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        reads = scope["method"] in ("GET", "HEAD")
        if access.hosts:
            host, origin = headers.get("host", []), headers.get("origin", [])
            if len(host) != 1 or host[0] not in access.hosts:
                raise ApiError(421, "This address is not served. Use the address that was printed.")
            missing, own = access.browser and not (origin or reads), {f"http://{host[0]}"}
            if missing or len(origin) > 1 or not own.issuperset(origin):
                raise ApiError(403, "Pages of other sites may not ask.")
        if access.secret is not None and scope["path"] not in access.open_paths:
            sent = ",".join(headers.get("authorization", [])).encode("latin-1")
            if not hmac.compare_digest(sent, access.secret.encode()):
                error = ApiError(401, "No API key, or a wrong one. Send it as 'Bearer KEY'.")
                error.headers = {"www-authenticate": access.secret.split()[0]}
                raise error
        length = headers.get("content-length", ["0"])[0]
        if not re.fullmatch("[0-9]{1,12}", length) or int(length) > access.max_bytes:
            raise self._too_large()
        if self.draining and not reads:
            raise ApiError(503, "The server is stopping. Ask another one, or try again later.")

    def _too_large(self) -> ApiError:
        most = self._access.max_bytes
        return ApiError(413, f"The request has more than {most} bytes. Send a shorter one.")

    def _with_headers(
        self, headers: Collection[tuple[bytes, bytes]], request: str
    ) -> list[tuple[bytes, bytes]]:
        """Add security headers to a reply; those that its route sets take precedence."""
        ours = {
            b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
            b"referrer-policy": b"no-referrer",
            b"x-content-type-options": b"nosniff",
            b"cross-origin-resource-policy": b"same-origin",
            b"x-request-id": request.encode(),
        }
        if self.draining:
            ours[b"connection"] = b"close"
        return list((ours | {name.lower(): value for name, value in headers}).items())


def _request_id(scope: Message) -> str:
    """The client's x-request-id if it is a short word, else a new id."""
    sent = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return sent if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", sent) else uuid.uuid4().hex


# --- The address ---


def check_listener(host: str, secret: str | None, *, variable: str, least: int) -> None:
    """Raise a UserError if others could reach the address without a secret of `least` letters.

    `variable` is the environment variable that holds the secret.
    """
    if secret is None and host == LOCAL:
        return
    if not secret:
        raise UserError(
            f"--listen {host} lets others in. Set the environment variable {variable} to "
            f"{least} characters or more first."
        )
    if len(secret) < least or not secret.isascii() or not secret.isprintable():
        raise UserError(
            f"The key or password has {len(secret)} characters. Accepted: {least} or more "
            "printable ASCII characters."
        )


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to an address; port 0 means any free one."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        raise UserError(
            f"{host}:{port} cannot be listened on ({error}). Give another --port, or 0 for any."
        ) from error
    return bound


def start_listening(bound: socket.socket) -> str:
    """Start listening and return the address; clients now wait instead of being refused."""
    bound.listen()
    return f"http://{hosts_of(bound)[0]}/"


def hosts_of(bound: socket.socket) -> list[str]:
    """The values of the header Host for a socket, with `localhost` for the loopback address."""
    host, port = bound.getsockname()[:2]
    names = [f"[{host}]" if ":" in host else host, *(["localhost"] if host == LOCAL else [])]
    return [f"{name}:{port}" for name in names]


# --- The server ---


class Server(uvicorn.Server):
    """A uvicorn server that answers the requests under way before it ends.

    At SIGTERM or SIGINT the guard refuses new work, and the socket stays open to say so. The
    server ends when the last request is answered, after `drain` seconds, or at a second signal.
    """

    def __init__(
        self, guard: Guard, *, drain: float = 0.0, request_seconds: float = REQUEST_SECONDS
    ) -> None:
        protocol: Any = partial(DeadlineProtocol, request_seconds)
        super().__init__(
            uvicorn.Config(
                guard, http=protocol, ws="none", log_level="warning", server_header=False,
                timeout_graceful_shutdown=1,
            )
        )  # fmt: skip
        self._guard, self._drain = guard, drain

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain at the first signal, stop at the second; the process then exits with 0."""
        self._drain = 0.0 if self.should_exit else self._drain
        self.should_exit = self._guard.draining = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the requests under way, then close everything."""
        self._guard.draining = True
        under_way, begun = set(self.server_state.tasks), time.monotonic()
        while under_way and time.monotonic() < begun + self._drain:
            _, under_way = await asyncio.wait(under_way, timeout=0.1)
        await super().shutdown(sockets)


class DeadlineProtocol(H11Protocol):
    """HTTP/1.1 with a deadline: a request must be complete some seconds after its first byte.

    uvicorn itself waits for ever: half a request would keep its connection open. A connection that
    sends nothing is closed after the same time.
    """

    def __init__(self, seconds: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._seconds, self._expire)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if not self._is_partial():
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._seconds, self._expire)

    def _is_partial(self) -> bool:
        """Whether a request has begun to arrive and is not whole."""
        head = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        return head or self.conn.their_state is h11.SEND_BODY

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self._is_partial() and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(
                b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            )
        self.transport.close()
