"""GGUF files: turned once into a folder of safetensors, so that the second start takes seconds."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from anchorscope.errors import UserError
from anchorscope.models.gguf_tokens import around, note_around, tokenizer_of

# A file that was changed anywhere for longer than the gaps is another file: 16 MiB in 512 pieces
# leaves gaps of half a MiB in 253 MB, and of 8 MiB in 4 GB.
_PIECES, _PIECE = 512, 1 << 15
_FORMAT = 2  # of the converted folder; another number makes every file be converted again


def cache_folder() -> Path:
    """The folder for converted models: $ANCHORSCOPE_CACHE, or the user's cache folder."""
    given = os.environ.get("ANCHORSCOPE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "anchorscope"


def converted(path: Path) -> Path:
    """The folder of safetensors that holds the same model as the GGUF file at `path`."""
    folder = cache_folder() / f"{path.stem}-{_fingerprint(path)}"
    if not (folder / "config.json").exists():
        _convert(path, folder)
    return folder


def _fingerprint(path: Path) -> str:
    """A hash of the size and of pieces from all over the file: gigabytes would cost seconds."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{_FORMAT}:{size}".encode())
    with path.open("rb") as file:
        for piece in range(_PIECES):
            file.seek(max(0, size - _PIECE) * piece // (_PIECES - 1))
            digest.update(file.read(_PIECE))
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
        said = around(path)
        tokenizer = tokenizer_of(path, said)
        partial.mkdir(parents=True, exist_ok=True)
        lm.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        note_around(partial, said)
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
