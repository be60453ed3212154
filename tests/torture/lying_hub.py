"""A hub that lies in one answer or in all: the right detector, or a sentence for a terminal."""

from __future__ import annotations

import json
import logging
import shutil
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import NamedTuple
from unittest.mock import patch

from kit.hub_server import Hub, hub, reached

from anchorscope.detect.detector import Detector
from anchorscope.detect.saved import FILES, upload
from anchorscope.errors import UserError
from torture.folders import PATHS, PLACE, changed, detector
from torture.hostile import MARKUP, Hang, part, text

SECONDS = 60.0  # by the clock; no byte is waited for longer than `_PATIENCE`
_PATIENCE = 0.6
_NAME = "org/detector"
_STATUS = (100, 202, 204, 206, 302, 304, 401, 403, 404, 410, 416, 429, 500, 503, 999)
_PLACES = ("file:///etc/passwd", "ftp://127.0.0.1:1/x", "http://127.0.0.1:1/x", "//", "http://[",
           "../../../x", "/again", "", "http://127.0.0.1:999999/")  # fmt: skip
_HEADERS = ("ETag", "X-Repo-Commit", "X-Linked-Etag", "X-Linked-Size", "Content-Range", "Link",
            "X-Error-Code", "X-Error-Message", "Retry-After", "Content-Type")  # fmt: skip


class Answer(NamedTuple):
    """An honest answer."""

    status: int
    headers: dict[str, str]
    data: bytes


class Lie(NamedTuple):
    """A false answer: to which request (-1: to every one), of which kind, from which seed."""

    at: int
    kind: str
    seed: int


def _sent(answer: Answer, *, length: str = "", reason: str = "OK") -> bytes:
    head = {"Content-Length": length or str(len(answer.data)), **answer.headers}
    lines = [f"HTTP/1.1 {answer.status} {reason}", *(f"{n}: {v}" for n, v in head.items())]
    return (
        "\r\n".join([*lines, "Connection: close", "", ""]).encode("utf-8", "replace") + answer.data
    )


def _cut(r: Random, answer: Answer) -> bytes:
    whole = _sent(answer)
    return whole[: r.randrange(1, len(whole))]


def _flip(r: Random, answer: Answer) -> bytes:
    data = bytearray(answer.data or b"x")
    data[r.randrange(len(data))] ^= 1 << r.randrange(8)
    return _sent(answer._replace(data=bytes(data)))


def _json(r: Random, answer: Answer) -> bytes:
    try:
        data = json.dumps(changed(r, json.loads(answer.data))).encode()
    except (ValueError, RecursionError):
        data = f"<html>{r.choice(MARKUP)}{text(r)}".encode("utf-8", "replace")
    return _sent(answer._replace(data=data))


def _header(r: Random, answer: Answer) -> bytes:
    odd = (*PATHS[:4], "9" * 5000, "x" * 70_000, '"', "-1", '<http://127.0.0.1:1/x>; rel="next"')
    return _sent(answer._replace(headers=answer.headers | {r.choice(_HEADERS): r.choice(odd)}))


def _status(r: Random, answer: Answer) -> bytes:
    reason = r.choice(("No", "", "\x1b[31mred", "x" * 60_000, part(r).replace("\n", " ")))
    return _sent(answer._replace(status=r.choice(_STATUS)), reason=reason)


KINDS: dict[str, Callable[[Random, Answer], bytes]] = {
    "cut": _cut,
    "flip": _flip,
    "json": _json,
    "header": _header,
    "status": _status,
    "length": lambda r, a: _sent(a, length=r.choice(("-1", "x", "9" * 400, "0", "3, 4", "٣"))),
    "redirect": lambda r, a: _sent(Answer(302, {"Location": r.choice(_PLACES)}, b"")),
    "noise": lambda r, a: r.choice((b"HTTP/1.1", b"\r\n\r\n", r.randbytes(300), b"x" * 200_000)),
}


@contextmanager
def _lying(lie: Lie) -> Iterator[Hub]:
    """A hub with a detector on it, asked by the hub's library with an empty cache."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http, disable_progress_bars

    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    shutil.rmtree(PLACE / "hf", ignore_errors=True)
    files = {name: (detector() / name).read_bytes() for name in FILES}
    quick = types.SimpleNamespace(**{**vars(time), "sleep": lambda _: None})

    def answer(number: int, status: int, headers: dict[str, str], data: bytes) -> bytes | None:
        honest = Answer(status, headers, data)
        return KINDS[lie.kind](Random(lie.seed), honest) if lie.at in (-1, number) else None

    begun = time.monotonic()
    waits = {name: _PATIENCE for name in dir(constants) if name.endswith("_TIMEOUT")}
    repositories = {_NAME: {"private": False, "files": files}}
    with (
        hub(repositories=repositories, lie=answer) as state,
        patch.object(_http, "time", quick),
        reached(state, PLACE / "hf", **waits),
    ):
        yield state
    if time.monotonic() - begun > SECONDS:
        raise Hang(f"{lie} kept us waiting for {time.monotonic() - begun:.1f} s")


def _refusal(work: Callable[[], object]) -> str:
    """What a UserError says, for a terminal: short, in one line, without controls."""
    try:
        work()
    except UserError as error:
        said = str(error)
        assert 0 < len(said) < 2000 and said.isprintable() and "Traceback" not in said, said[:500]
        return said
    return ""


def check_detector(lie: Lie) -> None:
    """What came of a lie is not kept: the same hub, honest again, gives the right detector."""
    own = Detector.load(detector()).id
    with _lying(lie) as state:
        loaded: list[str] = []
        refused = _refusal(lambda: loaded.append(Detector.load(_NAME).id))
        assert refused or loaded == [own]
        state.lie = None
        assert Detector.load(_NAME).id == own


def check_upload(lie: Lie) -> None:
    with _lying(lie):
        _refusal(lambda: upload(detector(), "org/pushed", private=True))
