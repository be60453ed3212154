"""Fetch over HTTP within bounds of size and time; a broken or hostile answer is a `URLError`."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

_PIECE = 1 << 20
_HEAD = 1 << 20  # bytes of headers and redirects that an answer may have
_SLOWEST = 10_000  # bytes a second, once the first seconds are over


def pieces(address: str, *, seconds: float, most: int, **headers: str) -> Iterator[bytes]:
    """The bytes at an address as they arrive; a URLError where they are too many or too slow."""
    try:
        with opened(address, seconds=seconds, most=most, **headers) as answer:
            while piece := answer.read(_PIECE):
                yield piece
    except (HTTPException, OverflowError) as error:
        raise URLError(f"the answer is broken ({type(error).__name__})") from error
    except OSError as error:
        raise error if isinstance(error, URLError) else URLError(error) from error


def opened(
    address: str, *, seconds: float, most: int = 0, method: str = "GET", **headers: str
) -> Any:
    """The response, open to be read; a ValueError where the address is not HTTP.

    It raises a URLError after so many seconds without a byte, or where it is too slow after them.
    """
    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError(f"{address} is no address of the web")
    try:
        request = Request(address, method=method, headers=headers)
        return _opener(_Pace(seconds, most + _HEAD)).open(request, timeout=seconds)
    except HTTPError as error:
        error.close()
        raise
    except (HTTPException, OverflowError) as error:
        raise URLError(f"the answer is broken ({type(error).__name__})") from error
    except OSError as error:
        raise error if isinstance(error, URLError) else URLError(error) from error


class _Pace:
    """Count the bytes of a response; raise a URLError where they are too many or too slow."""

    def __init__(self, seconds: float, most: int) -> None:
        self._begun, self._seconds, self._most, self._had = time.monotonic(), seconds, most, 0

    def had(self, count: int) -> None:
        self._had += count
        if self._had > self._most:
            raise URLError(f"more than {self._most} bytes come")
        if time.monotonic() - self._begun > self._seconds + self._had / _SLOWEST:
            raise URLError(f"only {self._had} bytes came in {self._seconds:g} s")


class _Paced(io.RawIOBase):
    """The bytes of a socket, counted by a `_Pace`."""

    def __init__(self, raw: io.RawIOBase, pace: _Pace) -> None:
        self._raw, self._pace = raw, pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        count = self._raw.readinto(buffer)
        self._pace.had(count or 0)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _opener(pace: _Pace) -> OpenerDirector:
    """An opener that follows redirects over HTTP alone: not to a file, not to FTP."""

    class Answer(HTTPResponse):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.fp = io.BufferedReader(_Paced(self.fp.detach(), pace))  # type: ignore[attr-defined]

    class Plain(HTTPConnection):
        response_class = Answer

    class Secret(HTTPSConnection):
        response_class = Answer

    class Http(HTTPHandler):
        def http_open(self, req: Request) -> Any:
            return self.do_open(Plain, req)

    class Https(HTTPSHandler):
        def https_open(self, req: Request) -> Any:
            return self.do_open(Secret, req)

    opener = OpenerDirector()
    for handler in (ProxyHandler(), Http(), Https(), HTTPDefaultErrorHandler(),
                    HTTPRedirectHandler(), HTTPErrorProcessor(), UnknownHandler()):  # fmt: skip
        opener.add_handler(handler)
    return opener
