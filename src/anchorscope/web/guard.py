"""ASGI guard: Host and Origin checks, API key, limit of request bodies, security headers.

Without a key only this machine can connect, but a page of another site can make a browser on it
send requests to 127.0.0.1, and by a name that first points elsewhere and then here (DNS rebinding)
read the replies. So without a key the Host must be exactly the address that is served, and the
Origin, where there is one, the page's own.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

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
_HEADERS = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}


class ApiError(Exception):
    """An HTTP error with its sentence, in the JSON that OpenAI's clients read."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self._code = status, param, code

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the status."""
        return _HEADERS.get(self.status, {})

    def body(self) -> dict[str, Any]:
        """The error as JSON: message, type, param, code."""
        kind, code = _KINDS.get(self.status, ("invalid_request_error", "invalid_request"))
        fields = {"type": kind, "param": self.param, "code": self._code or code}
        return {"error": {"message": str(self), **fields}}


@dataclass(frozen=True, kw_only=True)
class Access:
    """Which requests a guard lets through."""

    hosts: Collection[str]  # the exact values of Host, where there is no key
    key: str | None = None  # sent as `Authorization: Bearer KEY`
    keyless: Collection[str] = ()  # paths that need no key
    paths: re.Pattern[str] | None = None  # what else is asked for does not exist
    browser: bool = False  # a POST must name its Origin, as every browser does
    max_bytes: int = 1 << 16  # of a request's body
    policy: str = "default-src 'none'; frame-ancestors 'none'"  # Content-Security-Policy


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
        self._app, self._access, self._on_request = app, access, on_request
        self._origins = frozenset(f"http://{host}" for host in access.hosts)
        self._headers = [
            (b"content-security-policy", access.policy.encode()),
            (b"referrer-policy", b"no-referrer"),
            (b"x-content-type-options", b"nosniff"),
            (b"cross-origin-resource-policy", b"same-origin"),
        ]
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close"})
        begun, facts = time.monotonic(), scope.setdefault("facts", {})
        facts |= {"id": _request_id(scope), "method": scope["method"], "path": scope["path"][:200]}

        def report() -> None:
            if "seconds" not in facts:
                facts.setdefault("status", 499)
                facts["seconds"] = round(time.monotonic() - begun, 4)
                self._on_request(facts)

        async def reply(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                facts["status"] = message["status"]
                own = [(b"x-request-id", facts["id"].encode())]
                message["headers"] = [*self._with_headers(message.get("headers", [])), *own]
            elif not message.get("more_body", False):
                report()  # before the client has it all: an answered request is counted
            await send(message)

        try:
            await self._pass(scope, receive, reply)
        except ApiError as error:
            await _send_error(reply, error)
        except asyncio.CancelledError:  # the server ends, and the time to drain is over
            if "status" in facts:
                raise
            log.warning("%s was cut off: the server stopped before the answer.", scope["path"])
            await _send_error(reply, ApiError(503, "The server stopped before the answer."))
        except Exception:
            facts.setdefault("status", 500)  # which uvicorn sends
            raise
        finally:
            report()

    async def _pass(self, scope: Scope, receive: Receive, reply: Send) -> None:
        self._check(scope)
        body = await self._body(receive)
        if body is None:
            return  # the client left
        if self.draining and scope["method"] not in ("GET", "HEAD"):
            raise ApiError(503, "The server is stopping. Ask another one, or try again later.")
        await self._app(scope, _replay(body, receive), reply)

    def _check(self, scope: Scope) -> None:
        """Raise an ApiError for a request that can be refused by its headers."""
        access, path = self._access, scope["path"]
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        if access.key is None:
            host, origin = headers.get("host", []), headers.get("origin", [])
            if len(host) != 1 or host[0] not in access.hosts:
                raise ApiError(421, "This address is not served. Use the address that was printed.")
            missing = access.browser and not origin and scope["method"] not in ("GET", "HEAD")
            if missing or len(origin) > 1 or not self._origins.issuperset(origin):
                raise ApiError(403, "Pages of other sites may not ask.")
        elif path not in access.keyless:
            sent = ",".join(headers.get("authorization", [])).encode("latin-1")
            if not hmac.compare_digest(sent, f"Bearer {access.key}".encode()):
                raise ApiError(401, "No API key, or a wrong one. Send it as 'Bearer KEY'.")
        if access.paths is not None and (".." in path or not access.paths.fullmatch(path)):
            raise ApiError(404, "There is nothing here.")
        size = headers.get("content-length", ["0"])[0]
        if not re.fullmatch("[0-9]{1,12}", size) or int(size) > access.max_bytes:
            raise self._too_large()

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body, counted as it arrives; None: the client left."""
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._access.max_bytes:
                raise self._too_large()  # the server discards what still comes
        return bytes(body)

    def _too_large(self) -> ApiError:
        most = self._access.max_bytes
        return ApiError(413, f"The request has more than {most} bytes. Send a shorter one.")

    def _with_headers(self, headers: Collection[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        own = {name for name, _ in self._headers}
        closing = [(b"connection", b"close")] if self.draining else []
        return [*(h for h in headers if h[0].lower() not in own), *self._headers, *closing]


def _request_id(scope: Scope) -> str:
    """The id that the client gave its request, where that is a short word, or a new one."""
    sent = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return sent if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", sent) else uuid.uuid4().hex


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once and then what comes after it."""
    first = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> MutableMapping[str, Any]:
        return first.pop() if first else await receive()

    return receive_again


async def _send_error(send: Send, error: ApiError) -> None:
    body = json.dumps(error.body()).encode()
    extra = [(name.encode(), value.encode()) for name, value in error.headers.items()]
    length = str(len(body)).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", length), *extra]
    await send({"type": "http.response.start", "status": error.status, "headers": head})
    await send({"type": "http.response.body", "body": body})
