"""Run a server in a thread on a free port, and send requests with exact headers."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from anchorscope.app.page import AppState, guarded_app
from anchorscope.serve.app import Limits, serve_app
from anchorscope.serve.served import Served
from anchorscope.web.server import LOCAL, Guard, Server, bind, hosts_of, start_listening


@contextmanager
def running(
    guarded: Callable[[list[str]], Guard], *, listen: str = LOCAL, **options: float
) -> Iterator[tuple[Server, str]]:
    """Serve the app that `guarded` makes for its hosts; yield the server and its address."""
    with bind(listen, 0) as bound:
        server = Server(guarded(hosts_of(bound)), **options)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield server, start_listening(bound).rstrip("/")
        server.should_exit = True
        thread.join(timeout=10)


@contextmanager
def app_here(state: AppState, **options: Any) -> Iterator[str]:
    """Serve the app's page until the block ends; yield its address."""
    with running(lambda hosts: guarded_app(state, hosts=hosts, **options)) as (_, address):
        yield address


@contextmanager
def server_here(
    served: Served,
    *,
    key: str | None = None,
    listen: str = LOCAL,
    request_seconds: float = 30,
    **limits: int,
) -> Iterator[tuple[Server, str]]:
    """Serve a model and a detector as `detect serve` does; yield the server and its address."""

    def guarded(hosts: list[str]) -> Guard:
        return serve_app(served, limits=Limits(**limits), key=key, hosts=hosts)

    with running(guarded, listen=listen, drain=60, request_seconds=request_seconds) as both:
        yield both


def send(address: str, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Send a request with exactly these headers; return the reply's status, headers and body."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    body = b"{}" if method == "POST" else b""
    for name, value in (headers | {"content-length": str(len(body))}).items():
        connection.putheader(name, value)
    connection.endheaders(body)
    reply = connection.getresponse()
    found = reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
    connection.close()
    return found
