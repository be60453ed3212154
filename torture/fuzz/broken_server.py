"""A server on this machine that answers honestly but for one request, to which it lies."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import NamedTuple

from torture.fuzz.folders import PATHS, changed
from torture.fuzz.texts import MARKUP, part, text, value

DRIP = 8.0  # seconds for which a byte now and then is sent: more than anybody may wait
ENDLESS = 48 << 20  # bytes after which even that ends
STATUS = (100, 101, 199, 202, 204, 206, 302, 304, 401, 403, 404, 410, 416, 429, 500, 503, 599, 999)
PLACES = (
    "file:///etc/passwd", "ftp://127.0.0.1:1/x", "data:text/html,x", "http://127.0.0.1:1/x",
    "//", "http://[", "http://[::1/", "../../../x", "/again", "", "x y\x0bz", "http://a\u0100b/",
    "gopher://x", "javascript:1", "?", "http://127.0.0.1:999999/",
)  # fmt: skip
ODD_LENGTHS = ("-1", "x", "1e9", "9" * 400, str(10**18), "0", "", "3, 4", "+5", "٣", "0x10")
HEADERS = (
    "ETag", "X-Repo-Commit", "X-Linked-Etag", "X-Linked-Size", "Content-Range", "X-Error-Code",
    "X-Error-Message", "Retry-After", "RateLimit", "Content-Type", "Link", "X-Xet-Hash",
    "Set-Cookie", "Accept-Ranges", "X-HF-Warning",
)  # fmt: skip


class Answer(NamedTuple):
    """What would be said honestly."""

    status: int
    headers: dict[str, str]
    data: bytes


class Lie(NamedTuple):
    """At which request (-1: at every one), of which kind, drawn from which seed."""

    at: int
    kind: str
    seed: int


Honest = Callable[[str, str, bytes], Answer]
Script = list[bytes | float]  # what is sent, and for how long it is waited


class Server:
    """Answers one request for each connection; `lie` says to which of them falsely."""

    def __init__(self, honest: Honest) -> None:
        self.honest, self.lie, self._count = honest, Lie(-2, "", 0), 0
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def begin(self, lie: Lie) -> None:
        """Counts requests from here on."""
        self.lie, self._count = lie, 0

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError), connection:
            connection.settimeout(20)
            file = connection.makefile("rb")
            verb, path, _ = file.readline().decode("latin-1").split(" ", 2)
            length = 0
            while (line := file.readline().strip()) != b"":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            answer = self.honest(verb, path, file.read(length))
            number, self._count = self._count, self._count + 1
            honest = self.lie.at not in (-1, number)
            said = [written(answer, verb)] if honest else told(answer, verb, self.lie)
            for piece in said:
                time.sleep(piece) if isinstance(piece, float) else connection.sendall(piece)


def written(answer: Answer, verb: str, length: str | None = None, reason: str = "OK") -> bytes:
    """An answer as it goes over the wire."""
    head = {"Content-Length": length or str(len(answer.data)), **answer.headers}
    lines = [f"HTTP/1.1 {answer.status} {reason}", *(f"{n}: {of}" for n, of in head.items())]
    text = "\r\n".join([*lines, "Connection: close", "", ""])
    return text.encode("utf-8", "replace") + (b"" if verb == "HEAD" else answer.data)


def told(answer: Answer, verb: str, lie: Lie) -> Script:
    """What is sent in an answer's place."""
    return list(KINDS[lie.kind](Random(lie.seed), answer, verb))


def _cut(r: Random, answer: Answer, verb: str) -> Iterator[bytes]:
    whole = written(answer, "GET")
    yield whole[: r.randrange(len(whole))]


def _length(r: Random, answer: Answer, verb: str) -> Iterator[bytes]:
    near = str(max(0, len(answer.data) + r.choice((-3, -1, 1, 7, 10**6))))
    yield written(answer, verb, r.choice((*ODD_LENGTHS, near, near)))


def _page(r: Random, answer: Answer, verb: str) -> Iterator[bytes]:
    page = f"<html><body>{r.choice(MARKUP)}{text(r)}</body></html>".encode("utf-8", "replace")
    yield written(Answer(200, {"Content-Type": "text/html"}, page), verb)


def _json(r: Random, answer: Answer, verb: str) -> Iterator[bytes]:
    try:
        content = json.loads(answer.data)
    except ValueError:
        content = None
    content = value(r) if content is None or r.random() < 0.2 else changed(r, content)
    try:
        data = json.dumps(content).encode()
    except RecursionError:
        data = b"[" * 100_000
    yield written(answer._replace(data=data), verb)


def _flip(r: Random, answer: Answer, verb: str) -> Iterator[bytes]:
    data = bytearray(answer.data or b"x")
    data[r.randrange(len(data))] ^= 1 << r.randrange(8)
    yield written(answer._replace(data=bytes(data)), verb)


def _redirect(r: Random, answer: Answer, verb: str) -> Iterator[bytes]:
    status = r.choice((301, 302, 303, 307, 308, 300, 305))
    yield written(Answer(status, {"Location": r.choice(PLACES)}, b""), verb)


def _status(r: Random, answer: Answer, verb: str) -> Iterator[bytes]:
    reason = r.choice(("No", "", "\x1b[31mred", "x" * 60_000, part(r).replace("\n", " ")))
    yield written(answer._replace(status=r.choice(STATUS)), verb, reason=reason)


def _header(r: Random, answer: Answer, verb: str) -> Iterator[bytes]:
    odd = [*PATHS[:4], "../" * 9 + "tmp/out", part(r), "9" * 5000, "x" * 70_000, '"', 'W/""', "-1",
           '<http://127.0.0.1:1/x>; rel="next"', '"api";r=0;t=999999999',
           "bytes 5-2/1"]  # fmt: skip
    name, of = r.choice(HEADERS), re.sub(r"[\r\n]", " ", r.choice(odd))
    headers = answer.headers | {name: of}
    if r.random() < 0.1:
        headers |= {f"X-{n}": "y" for n in range(r.choice((50, 300)))}
    status = answer.status if r.random() < 0.7 else r.choice(STATUS)
    yield written(answer._replace(headers=headers, status=status), verb)


def _noise(r: Random, answer: Answer, verb: str) -> Iterator[bytes]:
    yield r.choice((b"", b"HTTP/1.1", b"HTTP/9.9 200 OK\r\n\r\n", b"\r\n\r\n", r.randbytes(300),
                    b"HTTP/1.1 200 OK\r\n" + r.randbytes(80) + b"\r\n\r\n", b"x" * 200_000,
                    b"HTTP/1.1 200 OK\r\nA: " + b"x" * 200_000))  # fmt: skip


def _chunks(r: Random, answer: Answer, verb: str) -> Iterator[bytes]:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    size = r.choice((b"%x" % len(answer.data), b"-5", b"zz", b"f" * 400, b"", b"1;" + b"x" * 9000))
    yield head + size + b"\r\n" + answer.data + r.choice((b"\r\n0\r\n\r\n", b"\r\n", b""))


def _packed(r: Random, answer: Answer, verb: str) -> Iterator[bytes]:
    data = r.choice((gzip.compress(answer.data), b"\x1f\x8b" + r.randbytes(40), answer.data,
                     gzip.compress(gzip.compress(bytes(1 << 20)))))  # fmt: skip
    kind = r.choice(("gzip", "br", "zstd", "deflate", "gzip, gzip", "x"))
    yield written(answer._replace(data=data, headers={"Content-Encoding": kind}), verb)


def _continue(r: Random, answer: Answer, verb: str) -> Iterator[bytes]:
    for _ in range(r.choice((1, 100, 4000))):
        yield b"HTTP/1.1 100 Continue\r\n\r\n" * 20
    yield written(answer, verb)


def _endless(r: Random, answer: Answer, verb: str) -> Iterator[bytes]:
    yield written(answer._replace(data=b""), verb, r.choice((str(10**12), str(2 * ENDLESS))))
    for _ in range(ENDLESS >> 20):
        yield bytes(1 << 20)


def _drip(r: Random, answer: Answer, verb: str) -> Iterator[bytes | float]:
    whole = written(answer, "GET")
    start = r.randrange(len(whole))
    yield whole[:start]
    for n in range(int(DRIP / 0.2)):
        yield 0.2
        yield whole[start + n : start + n + 1]


KINDS: dict[str, Callable[[Random, Answer, str], Iterator[bytes | float]]] = {
    "cut": _cut, "length": _length, "page": _page, "json": _json, "flip": _flip,
    "redirect": _redirect, "status": _status, "header": _header, "noise": _noise,
    "chunks": _chunks, "packed": _packed, "continue": _continue, "endless": _endless,
    "drip": _drip,
}  # fmt: skip
RARE = ("continue", "endless", "drip")  # of seconds each


def lie(r: Random, requests: int, *, rare: float = 0.03, slow: bool = True) -> Lie:
    """A lie to one of the first requests, or to all of them; a slow one only where asked for."""
    often = [kind for kind in KINDS if kind not in RARE]
    kind = r.choice(RARE if slow else RARE[:-1]) if r.random() < rare else r.choice(often)
    return Lie(r.choice((-1, *range(requests))), kind, r.getrandbits(60))
