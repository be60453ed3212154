"""Convert a GGUF file into a folder of safetensors, once: the second start takes seconds."""

from __future__ import annotations

import io
import logging
import os
import shutil
import struct
from contextlib import redirect_stderr
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from transformers import AutoModelForCausalLM

from anchorscope.errors import UserError
from anchorscope.models.converted_folder import damaged_file, folder_of, seal_folder
from anchorscope.models.gguf.tokens import note_around, read_header, tokenizer_of
from anchorscope.run_folder.whole import sync_folder

log = logging.getLogger(__name__)

if not hasattr(gguf, "__version__"):  # on Python 3.10 the first releases of transformers 5 ask it
    setattr(gguf, "__version__", version("gguf"))  # noqa: B010 - it declares none

# What comes of a file that is no GGUF file, is cut off, or holds what transformers cannot convert.
_UNREADABLE = (
    ValueError, KeyError, IndexError, TypeError, NotImplementedError, OverflowError, MemoryError,
    struct.error, ImportError, RuntimeError,
)  # fmt: skip


def converted(path: Path) -> Path:
    """The folder of safetensors that holds the same model as the GGUF file at `path`.

    Every file of it is checked each time; where one is damaged, the conversion is made again.
    """
    folder = folder_of(path)
    damaged = damaged_file(folder)
    if damaged is not None:
        if folder.exists():
            log.warning(
                "The cached conversion of %s is damaged (%s); it is converted again.", path, damaged
            )
        _convert(path, folder)
    return folder


def _dense() -> dict[str, Any]:
    """The option that unpacks every weight; transformers before 5.18 did so without being asked."""
    config = getattr(transformers, "GgufConfig", None)
    return {"quantization_config": config(dequantize=True)} if config else {}


def _put(partial: Path, folder: Path) -> None:
    """Gives a finished conversion its name, unless another process was first.

    A whole folder stays, since another process may be reading it; a damaged one is replaced.
    """
    if folder.exists() and damaged_file(folder) is not None:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        partial.rename(folder)
    except OSError:
        if damaged_file(folder) is not None:
            raise
    sync_folder(folder.parent)


def _convert(path: Path, folder: Path) -> None:
    """Writes beside the final name and renames, so that a torn conversion is never read."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        # The header first: a file that is none, or is cut off, is refused in no time.
        header = read_header(path)
        # transformers' bar over the tensors cannot be turned off; warnings go through logging,
        # which holds the real stderr.
        with redirect_stderr(io.StringIO()):
            # float16 holds a dequantised weight to 2^-11 of itself; bfloat16 would only to 2^-8.
            lm = AutoModelForCausalLM.from_pretrained(
                path.parent,
                gguf_file=path.name,
                dtype=torch.float16,
                trust_remote_code=False,
                **_dense(),
            )
        lm.generation_config.eos_token_id = list(header.ends) or None
        partial.mkdir(parents=True, exist_ok=True)
        lm.save_pretrained(partial)
        tokenizer_of(path, header).save_pretrained(partial)
        note_around(partial, header.around)
        seal_folder(partial)
        _put(partial, folder)
    except _UNREADABLE as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(". ")
        raise UserError(
            f"The GGUF file {path} could not be read: {said}. Accepted: whole GGUF files, of an "
            "architecture and a quantisation that transformers can convert; or give the model's "
            "folder."
        ) from error
    except OSError as error:
        raise UserError(
            f"The GGUF file {path} could not be converted into {folder}: {error}. "
            "Free some disk, or point ANCHORSCOPE_CACHE at a folder with room."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
