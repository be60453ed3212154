"""Who may ask, and how much: the API key, the size of a request, and pages of other sites.

Without a key only this machine can connect, but any page may send a browser on it here (also by a
name that first points elsewhere and then here). So without a key the Host must be the address that
is served, and what a page of another origin sends is refused.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Collection, MutableMapping
from typing import Any

from anchorscope.app.guard import Asgi, Receive, Scope, Send
from anchorscope.serve.refusal import Refusal

OPEN = "/healthz"  # says nothing, and what watches over servers holds no key
_DRAINED = 1 << 23  # bytes read past the limit, so that a client hears why before it is cut off

_HEADERS = [
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]


class Guard:
    """Wraps an ASGI app; `hosts` are the values of Host that are served where there is no key."""

    def __init__(self, app: Asgi, *, key: str | None, hosts: Collection[str], largest: int) -> None:
        self._app, self._largest = app, largest
        self._key = None if key is None else key.encode()
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close"})
        try:
            self._admit(scope)
            body = await self._body(scope, receive)
        except Refusal as refusal:
            return await _refuse(send, refusal)
        return await self._app(scope, _replayed(body, receive), _with_headers(send))

    def _admit(self, scope: Scope) -> None:
        headers = {name.decode("latin-1").lower(): value for name, value in scope["headers"]}
        if self._key is None:
            host, origin = headers.get("host", b""), headers.get("origin")
            if host.decode("latin-1") not in self._hosts:
                raise Refusal(403, "This address is not served. Use the one that was printed.")
            if origin is not None and origin != b"http://" + host:
                raise Refusal(403, "Pages of other sites may not ask.")
        elif scope["path"] != OPEN:
            given = headers.get("authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self._key):
                raise Refusal(401, "No API key, or a wrong one. Send it as 'Bearer KEY'.")

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body, which is small or refused."""
        parts, size, more = [], 0, True
        while more and size <= self._largest + _DRAINED:
            message = await receive()
            if message["type"] == "http.disconnect":
                break
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size <= self._largest:
                parts.append(part)
        if size > self._largest:
            raise Refusal(
                413, f"The request has more than {self._largest} bytes. Ask a shorter question."
            )
        return b"".join(parts)


def _with_headers(send: Send) -> Send:
    """A `send` that forbids a browser to take an answer for a page."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_HEADERS]
        await send(message)

    return sending


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once and then what comes after it."""
    given = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Send, refusal: Refusal) -> None:
    head = [(b"content-type", b"application/json"), *_HEADERS]
    if refusal.status == 401:
        head.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": head})
    await send({"type": "http.response.body", "body": json.dumps(refusal.body()).encode()})
