"""HTTP server on uvicorn: bind an address, deadlines for requests, drain at SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from anchorscope.errors import UserError
from anchorscope.web.guard import Guard

LOCAL = "127.0.0.1"
REQUEST_SECONDS = 30.0


def check_listener(
    host: str,
    secret: str | None,
    *,
    what: str,
    variable: str,
    least: int,
    one_address: bool = False,
) -> None:
    """Raise a UserError where others could reach the address without a secret that is long enough.

    With `one_address` it must be the one that visitors type: the Host of a request is compared.
    """
    if one_address and host in ("0.0.0.0", "::", ""):  # nosec B104: this refuses it
        raise UserError(
            f"--listen '{host}' is every address. Accepted: one address of this machine, "
            "the one that visitors type, so that no other name can be used to reach it."
        )
    if secret is None and host == LOCAL:
        return
    if not secret:
        article = "an" if what[0] == "A" else "a"
        raise UserError(
            f"--listen {host} lets others in. Set {article} {what} of {least} characters "
            f"or more in the environment variable {variable} first."
        )
    if len(secret) < least or not secret.isascii() or not secret.isprintable():
        raise UserError(
            f"The {what} has {len(secret)} characters. Accepted: {least} or more printable ASCII "
            "characters."
        )


def bind(host: str, port: int) -> socket.socket:
    """A socket with that address; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
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
    """The address, once the socket listens: a client that comes now waits, and is not refused."""
    bound.listen()
    host, port = bound.getsockname()[:2]
    return f"http://{host_header(host, port)}/"


def host_header(host: str, port: int) -> str:
    """The address as clients write it in the header Host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Server(uvicorn.Server):
    """A uvicorn server that answers the requests under way before it ends.

    At SIGTERM or SIGINT the guard refuses new work, and the socket stays open to say so. The
    server ends when the last request is answered, after `drain` seconds, or at a second signal.
    """

    def __init__(
        self, guard: Guard, *, drain: float = 0.0, request_seconds: float = REQUEST_SECONDS
    ) -> None:
        protocol: Any = partial(DeadlineProtocol, request_seconds)
        # A second for what is left at the end: streams of open pages last as long as their tabs.
        super().__init__(
            uvicorn.Config(
                guard, http=protocol, ws="none", log_level="warning", server_header=False,
                timeout_graceful_shutdown=1,
            )
        )  # fmt: skip
        self._guard, self._drain = guard, drain
        logging.getLogger("uvicorn.error").addFilter(_is_news)

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
    """HTTP/1.1 in which a request must be whole some seconds after its first byte.

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


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn's log is news: that open pages were left at the end is not."""
    kind = record.exc_info[0] if record.exc_info else None
    ended = isinstance(kind, type) and issubclass(kind, asyncio.CancelledError)
    return not (ended or "CancelledError" in str(record.msg) or str(record.msg)[:7] == "Cancel ")
