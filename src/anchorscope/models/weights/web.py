"""One way to ask the web: over HTTP, and nothing else."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen


def opened(address: str, *, seconds: float, method: str = "GET", **headers: str) -> Any:
    """The answer, open to be read; a ValueError where the address is not of the web.

    urllib opens files too, and an index's page may name whatever it likes.
    """
    scheme = urlsplit(address).scheme
    if scheme not in ("http", "https"):
        raise ValueError(f"{address} is no address of the web")
    request = Request(address, method=method, headers=headers)
    return urlopen(request, timeout=seconds)  # nosec B310
