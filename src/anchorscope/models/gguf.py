"""GGUF files: turned once into a folder of safetensors, so that the second start takes seconds."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from anchorscope.errors import UserError

_PEEK = 1 << 20


def cache_folder() -> Path:
    """The folder for converted models: $ANCHORSCOPE_CACHE, or the user's cache folder."""
    given = os.environ.get("ANCHORSCOPE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "anchorscope"


def folder_of(path: Path) -> Path:
    """Where the conversion of the GGUF file at `path` lies, or would lie."""
    return cache_folder() / f"{path.stem}-{_fingerprint(path)}"


def converted(path: Path) -> Path:
    """The folder of safetensors that holds the same model as the GGUF file at `path`."""
    folder = folder_of(path)
    if not (folder / "config.json").exists():
        _convert(path, folder)
    return folder


def _fingerprint(path: Path) -> str:
    """A hash of size, header and tail: reading gigabytes at every start would cost seconds."""
    digest = hashlib.sha256(str(path.stat().st_size).encode())
    with path.open("rb") as file:
        digest.update(file.read(_PEEK))
        file.seek(max(0, path.stat().st_size - _PEEK))
        digest.update(file.read(_PEEK))
    return digest.hexdigest()[:16]


def _dense() -> dict[str, Any]:
    """The option that unpacks every weight; transformers before 5.18 did so without being asked."""
    config = getattr(transformers, "GgufConfig", None)
    return {"quantization_config": config(dequantize=True)} if config else {}


def _put(partial: Path, folder: Path) -> None:
    """Gives a finished conversion its name, unless another process was first."""
    if not (folder / "config.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)


def _convert(path: Path, folder: Path) -> None:
    """Writes beside the final name and renames, so that a torn conversion is never read."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        # float16 holds a dequantised weight to 2^-11 of itself; bfloat16 would only to 2^-8.
        lm = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float16, **_dense()
        )
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        partial.mkdir(parents=True, exist_ok=True)
        lm.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        _put(partial, folder)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UserError(
            f"The GGUF file {path} could not be read: {str(error).splitlines()[0]} Accepted: GGUF "
            "files of an architecture that transformers can convert; or give the model's folder."
        ) from error
    except OSError as error:
        raise UserError(
            f"The GGUF file {path} could not be converted into {folder}: {error}. "
            "Free some disk, or point ANCHORSCOPE_CACHE at a folder with room."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
