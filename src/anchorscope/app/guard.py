"""Who may speak to the app: the page itself, from this machine, and nobody behind its back.

A page of another site can make a visitor's browser send requests to 127.0.0.1, and by a name that
first points elsewhere and then here (DNS rebinding) read the replies. So the Host must be exactly
the address that is served, the Origin exactly the page's own, and only the paths that the page
needs exist.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_PATHS = re.compile(
    r"/|/(config|theme\.css|favicon\.ico|manifest\.json|robots\.txt|login/?|logout)"
    r"|/(assets|static|svelte)/[\w./~+-]+"
    r"|/gradio_api/(queue/(join|data)|heartbeat/\w+|startup-events|cancel|reset)"
)
_LARGEST = 1 << 16  # bytes of a request; a question has 2,000 characters
# gradio's own scripts stand in its page; nothing is loaded from, or sent to, anywhere else.
_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class Guard:
    """Wraps an ASGI app; `hosts` are the exact values of Host that are served."""

    def __init__(self, app: Asgi, *, hosts: Collection[str], scheme: str = "http") -> None:
        self._app, self._hosts = app, frozenset(hosts)
        self._origins = frozenset(f"{scheme}://{host}" for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        status = 403 if scope["type"] != "http" else self.refusal(scope)
        if status is not None:
            return await _refuse(send, status)

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in _HEADERS}
                kept = [pair for pair in message.get("headers", []) if pair[0].lower() not in own]
                message["headers"] = [*kept, *_HEADERS]
            await send(message)

        return await self._app(scope, receive, with_headers)

    def refusal(self, scope: Scope) -> int | None:
        """The status that a request is refused with; None: it may pass."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        if headers.get("host", []) not in [[host] for host in self._hosts]:
            return 421
        origin = headers.get("origin")
        if origin is None and scope["method"] not in ("GET", "HEAD"):
            return 403
        if origin is not None and (len(origin) != 1 or origin[0] not in self._origins):
            return 403
        if ".." in scope["path"] or not _PATHS.fullmatch(scope["path"]):
            return 404
        size = headers.get("content-length", ["0"])[0]
        # Ten digits and more are not even read; "²" is a digit, and no number.
        whole = size.isascii() and size.isdigit() and len(size) < 10
        return None if whole and int(size) <= _LARGEST else 413


_WORDS = {
    403: "This page speaks only to itself.",
    404: "There is nothing here.",
    413: "That is too long.",
    421: "This address is not the one that is served. Use the address that was printed.",
}


async def _refuse(send: Send, status: int) -> None:
    head = [(b"content-type", b"text/plain; charset=utf-8"), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": _WORDS[status].encode()})
